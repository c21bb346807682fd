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

// What a row reads.
enum Reads : unsigned {
  kThreads = 1 << 0,
  kRounds = 1 << 1,
  kLayers = 1 << 2,
  kWidth = 1 << 3,
  kVocab = 1 << 4,
  kSequence = 1 << 5,
  kDType = 1 << 6,
  kTraining = 1 << 7,
  kPeers = 1 << 8,
  kProbe = 1 << 9,
  kSizes = kWidth | kSequence,
  kModel = kSizes | kLayers | kVocab | kDType | kTraining,
};

struct FlagOf {
  const char* name;
  Reads reads;
};
constexpr FlagOf kFlags[] = {
    {"--threads", kThreads}, {"--rounds", kRounds},
    {"--layers", kLayers},   {"--width", kWidth},
    {"--vocab", kVocab},     {"--sequence", kSequence},
    {"--dtype", kDType},     {"--preset", kTraining},
    {"--batch", kTraining},  {"--recompute", kTraining},
    {"--steps", kTraining},  {"--clip", kTraining},
    {"--peer", kPeers},      {"--save-init", kPeers},
    {"--init", kProbe},      {"--ranks", kProbe},
    {"--stage", kProbe},
};

struct Entry {
  const char* name;
  std::vector<BenchRow> (*run)(const BenchOptions&);
  unsigned reads;
  bool only_by_name = false;  // takes minutes
};
// One a line:
// clang-format off
constexpr Entry kBenches[] = {
    {"card", BenchCard, kThreads},
    {"matmul", BenchMatMul, kThreads | kRounds | kSizes | kVocab | kDType},
    {"attention", BenchAttention, kThreads | kRounds | kSequence | kDType},
    {"norm", BenchNorm, kThreads | kRounds | kSizes},
    {"gelu", BenchGelu, kThreads | kRounds | kSizes},
    {"softmax", BenchSoftmax, kThreads | kRounds | kSizes},
    {"adamw", BenchAdamW, kThreads | kRounds},
    {"overlap", BenchOverlap, kRounds | kLayers},
    {"step", BenchStep, kRounds},
    {"collectives", BenchCollectives, kRounds},
    {"head", BenchHead, kThreads | kRounds | kSizes | kVocab | kDType, true},
    {"train", BenchTrain, kThreads | kRounds | kModel | kPeers, true},
    {"stages", BenchStages, kRounds | kModel, true},
    {"memory", BenchMemory, kThreads | kModel, true},
    {"startup", BenchStartup, kThreads | kRounds | kModel | kPeers, true},
};
// clang-format on
// Not a row: prints a line of its own (bench_probe.h).
constexpr char kProbeName[] = "probe";
constexpr unsigned kProbeReads = kThreads | kModel | kProbe;

std::string Names() {
  std::string names;
  for (const Entry& bench : kBenches)
    names += StrCat(names.empty() ? "" : ", ", bench.name);
  return names;
}

void PrintRow(const BenchRow& row) {
  std::printf("%-9s %s\n", row.bench.c_str(), row.what.c_str());
  for (const BenchNumber& number : row.numbers)
    std::printf("  %-28s %12.6g\n", number.name.c_str(), number.value);
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

// A flag that was given must be read: it would change nothing unseen.
void CheckFlags(const Flags& flags, const std::string& name, unsigned reads) {
  for (const FlagOf& flag : kFlags) {
    if (!flags.Given(flag.name) || (reads & flag.reads) != 0) continue;
    std::string readers;
    const auto add = [&](const char* reader) {
      readers += StrCat(readers.empty() ? "" : ", ", reader);
    };
    for (const Entry& bench : kBenches)
      if ((bench.reads & flag.reads) != 0) add(bench.name);
    if ((kProbeReads & flag.reads) != 0) add(kProbeName);
    TERRACE_THROW(ErrorCode::kUsage, "[bench] ", flag.name, " is for ", readers,
                  name.empty() ? ": name one of them" : ", not for " + name);
  }
  if (!flags.Given("--init")) return;
  for (const FlagOf& flag : kFlags)
    if (flag.reads != kProbe && flags.Given(flag.name))
      TERRACE_THROW(ErrorCode::kUsage,
                    "[bench] the folder of --init says what to train: ",
                    flag.name, " must not be given with it");
}

}  // namespace

int Bench(const Args& args) {
  constexpr IntRange kSmall = {.least = 0, .most = 1 << 16};
  constexpr IntRange kLarge = {.least = 0, .most = 1 << 20};
  std::string name;
  BenchOptions options;
  int64_t threads = 0, rounds = options.rounds, ranks = 1, stage = 0;
  double clip = 1;
  bool json = false;
  Flags flags("bench",
              "Measures this machine and this build: " + Names() +
                  ". A row refuses the flags that it does not read; 0 of a "
                  "size leaves it to the row.");
  flags.Positional("name", &name, "one of them; without: those of seconds");
  flags.Int("--threads", &threads, "T", "compute threads; 0: all cores",
            kThreadRange);
  flags.Int("--rounds", &rounds, "N",
            "of which the median counts; pairs of what is compared",
            {.least = 1, .most = 1000000});
  flags.Switch("--json", &json, "JSON instead of a table");
  flags.Text("--preset", &options.preset, "NAME", "GPT-2's size: gpt2-medium");
  flags.Int("--layers", &options.layers, "N", "of the model", kSmall);
  flags.Int("--width", &options.width, "C", "of the model, 64 a head", kSmall);
  flags.Int("--vocab", &options.vocab, "V", "of the model", kLarge);
  flags.Int("--batch", &options.batch, "B", "samples of a step", kSmall);
  flags.Int("--sequence", &options.sequence, "T",
            "tokens of a sample; rows of single ops", kLarge);
  flags.Text("--dtype", &options.dtype, "f32|bf16", "of the computation");
  flags.Text("--recompute", &options.recompute, "none|block", "in backward");
  flags.Int("--steps", &options.steps, "N", "timed steps of a round", kLarge);
  flags.Number("--clip", &clip, "X",
               "gradient clipping; 0: off, as it is with peers", {.least = 0});
  flags.List("--peer", &options.peers, "CMD",
             "a command to train beside ours; may be repeated");
  flags.Text("--save-init", &options.save_init, "DIR",
             "keep the weights and tokens that peers start from");
  flags.Text("--init", &options.init, "DIR",
             "the folder of peers that a probe trains");
  flags.Int("--ranks", &ranks, "N", "of a probe",
            {.least = 1, .most = kThreadRange.most});
  flags.Int("--stage", &stage, "0..3", "of a probe", {.least = 0, .most = 3});
  if (!flags.Parse(args)) return 0;
  const bool probe = name == kProbeName;
  const std::vector<Entry> benches =
      probe ? std::vector<Entry>() : Chosen(name);
  unsigned reads = probe ? kProbeReads : 0;
  for (const Entry& bench : benches) reads |= bench.reads;
  CheckFlags(flags, name, reads);
  options.threads =
      threads > 0 ? static_cast<int>(threads) : zero::DefaultThreads(1);
  options.rounds = static_cast<int>(rounds);
  if (flags.Given("--clip")) options.clip = clip;
  if (flags.Given("--ranks")) options.ranks = ranks;
  if (flags.Given("--stage")) options.stage = stage;
  if (probe) {
    std::printf("%s\n", ProbeLine(options).c_str());
    return 0;
  }
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
