#include <cstdio>
#include <string>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_probe.h"
#include "terrace/tools/commands.h"
#include "terrace/tools/machine.h"
#include "terrace/zero/runtime.h"

namespace terrace::tools {
namespace {

struct Entry {
  const char* name;
  std::vector<BenchRow> (*run)(const BenchOptions&);
  bool only_by_name = false;  // takes minutes
};
// One a line:
// clang-format off
constexpr Entry kBenches[] = {
    {"card", BenchCard},
    {"matmul", BenchMatMul},
    {"attention", BenchAttention},
    {"norm", BenchNorm},
    {"gelu", BenchGelu},
    {"softmax", BenchSoftmax},
    {"adamw", BenchAdamW},
    {"overlap", BenchOverlap},
    {"step", BenchStep},
    {"collectives", BenchCollectives},
    {"head", BenchHead, true},
    {"train", BenchTrain, true},
    {"stages", BenchStages, true},
    {"memory", BenchMemory, true},
    {"startup", BenchStartup, true},
};
// clang-format on

std::string Names() {
  std::string names;
  for (const Entry& bench : kBenches)
    names += StrCat(names.empty() ? "" : ", ", bench.name);
  return names;
}

void PrintRow(const BenchRow& row) {
  std::printf("%-9s %s\n", row.bench.c_str(), row.what.c_str());
  for (const BenchNumber& number : row.numbers)
    std::printf("  %-24s %12.6g\n", number.name.c_str(), number.value);
  if (!row.note.empty()) std::printf("  %s\n", row.note.c_str());
  std::fflush(stdout);
}

std::string ToJson(const std::vector<Fact>& machine,
                   const std::vector<BenchRow>& rows) {
  JsonWriter json(2);
  json.BeginObject();
  json.Key("machine").BeginObject();
  for (const Fact& fact : machine) json.Field(fact.name, fact.value);
  json.EndObject();
  json.Key("rows").BeginArray();
  for (const BenchRow& row : rows) {
    json.BeginObject();
    json.Field("bench", row.bench).Field("what", row.what);
    for (const BenchNumber& number : row.numbers)
      json.Key(number.name).Double(number.value, 9);
    if (!row.note.empty()) json.Field("note", row.note);
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
  return std::move(json).Text();
}

std::vector<Entry> Chosen(const std::string& name) {
  std::vector<std::string> names;
  std::vector<Entry> unnamed;
  for (const Entry& bench : kBenches) {
    if (name == bench.name) return {bench};
    names.emplace_back(bench.name);
    if (!bench.only_by_name) unnamed.push_back(bench);
  }
  if (name.empty()) return unnamed;
  const std::string nearest = NearestName(name, names);
  TERRACE_THROW(ErrorCode::kUsage, "[bench] there is no benchmark ", name,
                ", valid are ", Names(),
                nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

}  // namespace

int Bench(const Args& args) {
  std::string name;
  BenchOptions options;
  int64_t threads = 0, rounds = options.rounds;
  double clip = 1;
  bool json = false;
  Flags flags("bench",
              "Measures this machine and this build: " + Names() + ".");
  flags.Positional("name", &name, "one of them; without: those of seconds");
  flags.Int("--threads", &threads, "T", "compute threads; 0: all cores",
            kThreadRange);
  flags.Int("--rounds", &rounds, "N",
            "of which the median counts; pairs with a peer",
            {.least = 1, .most = 1000000});
  flags.Switch("--json", &json, "JSON instead of a table");
  flags.Text("--preset", &options.preset, "NAME", "GPT-2's size: gpt2-medium");
  flags.Int("--layers", &options.layers, "N", "of the model; 0: the preset's");
  flags.Int("--width", &options.width, "C", "of the model, 64 a head");
  flags.Int("--vocab", &options.vocab, "V", "of the model");
  flags.Int("--batch", &options.batch, "B", "samples of a step");
  flags.Int("--sequence", &options.sequence, "T", "tokens of a sample");
  flags.Text("--dtype", &options.dtype, "f32|bf16", "of the computation");
  flags.Text("--recompute", &options.recompute, "none|block", "in backward");
  flags.Int("--steps", &options.steps, "N", "timed steps of a round");
  flags.Number("--clip", &clip, "X", "gradient clipping; 0: off",
               {.least = 0});
  flags.List("--peer", &options.peers, "CMD",
             "a command to train beside ours; may be repeated");
  flags.Text("--save-init", &options.save_init, "DIR",
             "keep the weights and tokens that peers start from");
  flags.Text("--init", &options.init, "DIR",
             "the folder of peers that a probe trains");
  flags.Int("--ranks", &options.ranks, "N", "of a probe");
  flags.Int("--stage", &options.stage, "0..3", "of a probe");
  if (!flags.Parse(args)) return 0;
  options.threads =
      threads > 0 ? static_cast<int>(threads) : zero::DefaultThreads(1);
  options.rounds = static_cast<int>(rounds);
  if (flags.Given("--clip")) options.clip = clip;
  if (name == "probe") {
    std::printf("%s\n", ProbeLine(options).c_str());
    return 0;
  }
  const std::vector<Entry> benches = Chosen(name);
  const std::vector<Fact> machine =
      MachineFacts(Context({.threads = options.threads}));
  if (!json) PrintFacts(machine);
  std::vector<BenchRow> rows;
  for (const Entry& bench : benches) {
    for (BenchRow& row : bench.run(options)) {
      if (!json) PrintRow(row);
      rows.push_back(std::move(row));
    }
  }
  if (json) std::printf("%s\n", ToJson(machine, rows).c_str());
  return 0;
}

}  // namespace terrace::tools
