#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/models/generate.h"
#include "terrace/models/saved_model.h"
#include "terrace/tools/commands.h"
#include "terrace/tools/output.h"

namespace terrace::tools {
namespace {

struct GenerateFlags {
  std::string checkpoint, prompt;
  int64_t max_tokens = 200, top_k = 0, seed = 1, threads = 0;
  double temperature = 0.8, top_p = 1;
  bool stop_at_end = false;
};

void Continue(zero::Runtime& rt, const models::SavedModel& saved,
              const GenerateFlags& f) {
  const std::unique_ptr<models::LoadedModel> loaded =
      OfFlag("generate", "--checkpoint",
             [&] { return std::make_unique<models::LoadedModel>(rt, saved); });
  const models::CausalModel& model = loaded->causal();
  const models::Tokenizer& tokenizer = *saved.tokenizer;
  std::vector<int32_t> prompt = tokenizer.Encode(f.prompt);
  // Nothing given: the beginning of a document.
  if (prompt.empty()) prompt.push_back(tokenizer.end_of_text());
  models::GenerateOptions options;
  options.max_tokens = f.max_tokens;
  options.vocabulary = tokenizer.vocab_size();
  options.sampler = {.temperature = static_cast<float>(f.temperature),
                     .top_k = f.top_k,
                     .top_p = std::max(static_cast<float>(f.top_p),
                                       std::numeric_limits<float>::min()),
                     .seed = static_cast<uint64_t>(f.seed)};
  if (f.stop_at_end) options.end_of_text = tokenizer.end_of_text();
  const std::string notice = models::PromptNotice(model, std::ssize(prompt));
  if (!notice.empty()) std::fprintf(stderr, "note: %s\n", notice.c_str());
  PrintText(f.prompt);
  models::TextStream text(tokenizer);
  models::Generate(rt.context(), model, prompt, options, [&](int32_t id) {
    PrintText(text.Push(id));
    return true;
  });
  PrintText(text.Finish() + "\n");
}

}  // namespace

int Generate(const Args& args) {
  GenerateFlags f;
  Flags flags("generate", "Continues a prompt with a trained model.");
  flags
      .Text("--checkpoint", &f.checkpoint, "DIR",
            "a run's folder, its checkpoint, or a step's folder")
      .Required();
  flags.Text("--prompt", &f.prompt, "TEXT", "what to continue");
  flags.Int("--max-tokens", &f.max_tokens, "N", "tokens to draw", {.least = 0});
  flags.Number("--temperature", &f.temperature, "T",
               "0 takes the most likely token", {.least = 0, .most = 1000});
  flags.Int("--top-k", &f.top_k, "K", "of the K most likely tokens; 0: all",
            {.least = 0});
  flags.Number("--top-p", &f.top_p, "P",
               "of the most likely tokens that make up P",
               {.least = 0, .most = 1, .above_least = true});
  flags.Int("--seed", &f.seed, "S", "another seed, another text", {.least = 0});
  flags.Switch("--stop-at-end", &f.stop_at_end,
               "end with the document, not after --max-tokens");
  flags.Int("--threads", &f.threads, "T", "compute threads; 0: all cores",
            kThreadRange);
  if (!flags.Parse(args)) return 0;
  const models::SavedModel saved = OfFlag("generate", "--checkpoint", [&] {
    return models::ReadSavedModel(f.checkpoint);
  });
  const int64_t vocabulary = saved.tokenizer->vocab_size();
  if (f.top_k > vocabulary)
    TERRACE_THROW(ErrorCode::kUsage, "[generate] --top-k must be at most ",
                  vocabulary, ", the checkpoint's vocabulary, got '", f.top_k,
                  "'");
  return zero::Launch(models::InferenceOptions(static_cast<int>(f.threads)),
                      [&](zero::Runtime& rt) { Continue(rt, saved, f); });
}

}  // namespace terrace::tools
