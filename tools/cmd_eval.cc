#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"
#include "terrace/models/saved_model.h"
#include "terrace/models/trainer.h"
#include "terrace/tools/commands.h"

namespace terrace::tools {

int Eval(const Args& args) {
  std::string checkpoint;
  std::vector<std::string> text;
  int64_t threads = 0, batch = 8;
  bool json = false;
  Flags flags("eval", "Loss and perplexity of a checkpoint on text.");
  flags
      .Text("--checkpoint", &checkpoint, "DIR",
            "a run's folder, its checkpoint, or a step's folder")
      .Required();
  flags.Words("--text", &text, "FILES",
              "text files or patterns; without: what the run held out");
  flags.Int("--batch", &batch, "N", "samples of one forward",
            {.least = 1, .most = 1 << 20});
  flags.Int("--threads", &threads, "T", "compute threads; 0: all cores",
            kThreadRange);
  flags.Switch("--json", &json, "one line of JSON");
  if (!flags.Parse(args)) return 0;
  const models::SavedModel saved = OfFlag("eval", "--checkpoint", [&] {
    return models::ReadSavedModel(checkpoint);
  });
  const auto read = [&] { return models::ReadEvaluationText(saved, text); };
  const models::EvaluationText data =
      text.empty() ? read() : OfFlag("eval", "--text", read);
  if (!data.notice.empty())
    std::fprintf(stderr, "note: %s\n", data.notice.c_str());
  models::Evaluation result;
  std::string path;  // of what was loaded
  const int code = zero::Launch(
      models::InferenceOptions(static_cast<int>(threads), batch),
      [&](zero::Runtime& rt) {
        const std::unique_ptr<models::LoadedModel> loaded = OfFlag(
            "eval", "--checkpoint",
            [&] { return std::make_unique<models::LoadedModel>(rt, saved); });
        path = loaded->path();
        result =
            models::Evaluate(loaded->engine(), loaded->model(), data.tokens);
      });
  if (code != 0) return code;
  if (json) {
    JsonWriter out;
    out.BeginObject();
    out.Key("loss").Double(result.loss, 9);
    out.Key("perplexity").Double(std::exp(result.loss), 9);
    out.Field("tokens", static_cast<int64_t>(result.tokens));
    out.Field("checkpoint", path);
    out.EndObject();
    std::printf("%s\n", out.Text().c_str());
    return 0;
  }
  std::printf(
      "loss        %.6f nats a token\nperplexity  %.4f\ntokens      "
      "%.0f\ncheckpoint  %s\n",
      result.loss, std::exp(result.loss), result.tokens, path.c_str());
  return 0;
}

}  // namespace terrace::tools
