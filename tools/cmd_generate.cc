#include <cstdio>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/models/generate.h"
#include "terrace/models/saved_model.h"
#include "terrace/tools/commands.h"

namespace terrace::tools {
namespace {

struct GenerateFlags {
  std::string checkpoint, prompt;
  int64_t max_tokens = 200, top_k = 0, seed = 1, threads = 0;
  double temperature = 0.8, top_p = 1;
  bool stop_at_end = false;
};

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Continue(zero::Runtime& rt, const models::SavedModel& saved,
              const GenerateFlags& f) {
  const models::LoadedModel loaded(rt, saved);
  const models::Tokenizer& tokenizer = *saved.tokenizer;
  std::vector<int32_t> prompt = tokenizer.Encode(f.prompt);
  // Nothing given: the beginning of a document.
  if (prompt.empty()) prompt.push_back(tokenizer.end_of_text());
  models::GenerateOptions options;
  options.max_tokens = f.max_tokens;
  options.vocabulary = tokenizer.vocab_size();
  options.sampler = {.temperature = static_cast<float>(f.temperature),
                     .top_k = f.top_k,
                     .top_p = static_cast<float>(f.top_p),
                     .seed = static_cast<uint64_t>(f.seed)};
  if (f.stop_at_end) options.end_of_text = tokenizer.end_of_text();
  Print(f.prompt);
  models::TextStream text(tokenizer);
  models::Generate(rt.context(), loaded.causal(), prompt, options,
                   [&](int32_t id) {
                     Print(text.Push(id));
                     return true;
                   });
  Print(text.Finish() + "\n");
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
  flags.Int("--max-tokens", &f.max_tokens, "N", "tokens to draw");
  flags.Number("--temperature", &f.temperature, "T",
               "0 takes the most likely token");
  flags.Int("--top-k", &f.top_k, "K", "of the K most likely tokens; 0: all");
  flags.Number("--top-p", &f.top_p, "P",
               "of the most likely tokens that make up P");
  flags.Int("--seed", &f.seed, "S", "another seed, another text");
  flags.Switch("--stop-at-end", &f.stop_at_end,
               "end with the document, not after --max-tokens");
  flags.Int("--threads", &f.threads, "T", "compute threads; 0: all cores");
  if (!flags.Parse(args)) return 0;
  if (f.max_tokens < 0 || f.seed < 0 || f.threads < 0)
    TERRACE_THROW(ErrorCode::kUsage,
                  "[generate] --max-tokens, --seed and --threads must be at "
                  "least 0, got ",
                  f.max_tokens, ", ", f.seed, " and ", f.threads);
  const models::SavedModel saved = models::ReadSavedModel(f.checkpoint);
  return zero::Launch(models::InferenceOptions(static_cast<int>(f.threads)),
                      [&](zero::Runtime& rt) { Continue(rt, saved, f); });
}

}  // namespace terrace::tools
