// Checkpoints that are damaged, do not fit or cannot be written: a message on
// every rank, nothing changed, and the one before still loads.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/safetensors.h"
#include "terrace/tests/zero/checkpoint_support.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {
namespace {

namespace fs = std::filesystem;
using terrace::testing::ErrorFrom;
using terrace::testing::ExpectPart;
using terrace::testing::FreshDir;
using terrace::testing::MakeToy;
using terrace::testing::OptionsOf;
using terrace::testing::Overwrite;
using terrace::testing::Read;
using terrace::testing::RunSpec;
using terrace::testing::RunToy;
using terrace::testing::SavedToy;
using terrace::testing::Snapshot;
using terrace::testing::Toy;
using terrace::testing::Train;

constexpr RunSpec SpecOf(int ranks, int stage) {
  return {.ranks = ranks, .stage = stage};
}

// Loading throws on every rank, with one code, and changes nothing; the group
// goes on. Returns each rank's message.
std::vector<std::string> ExpectRefused(const std::string& path, ErrorCode code,
                                       const LoadOptions& options = {},
                                       RunSpec spec = SpecOf(2, 3)) {
  std::vector<std::string> messages(static_cast<size_t>(spec.ranks));
  RunToy(spec, [&](Engine& engine, const Toy& toy) {
    Train(engine, toy, 1);
    const uint64_t before = engine.store().StateHash();
    const Error error =
        ErrorFrom([&] { LoadCheckpoint(engine, path, options); });
    EXPECT_EQ(error.code(), code) << error.message();
    messages[static_cast<size_t>(engine.runtime().rank())] = error.message();
    EXPECT_EQ(engine.store().StateHash(), before);
    EXPECT_EQ(engine.counters().iteration, 1);
    Train(engine, toy, 1);
  });
  return messages;
}

std::string Refusal(const std::string& path, const LoadOptions& options = {},
                    RunSpec spec = SpecOf(1, 0)) {
  return ExpectRefused(path, ErrorCode::kData, options, spec)[0];
}

void FlipBit(const std::string& path, size_t at) {
  std::string bytes = ReadFile(path);
  ASSERT_LT(at, bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  Overwrite(path, bytes);
}

void Replace(const std::string& path, const std::string& from,
             const std::string& to) {
  std::string text = ReadFile(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  Overwrite(path, text.replace(at, from.size(), to));
}

// --- damage ---

TEST(CheckpointFailureTest, ATruncatedDataFileIsNamed) {
  const std::string file = SavedToy("run") + "/rank-1.safetensors";
  std::string bytes = ReadFile(file);
  Overwrite(file, bytes.substr(0, bytes.size() - 8));
  for (const std::string& message :
       ExpectRefused(fs::path(file).parent_path(), ErrorCode::kData)) {
    ExpectPart(message, "rank-1.safetensors");
    ExpectPart(message, "truncated");
  }
}

TEST(CheckpointFailureTest, AMissingDataFileIsNamed) {
  const std::string folder = SavedToy("run");
  fs::remove(folder + "/rank-2.safetensors");
  for (const std::string& message : ExpectRefused(folder, ErrorCode::kData)) {
    ExpectPart(message, folder + "/rank-2.safetensors is missing");
  }
}

TEST(CheckpointFailureTest, AFlippedBitIsFoundWhicheverRankReadsIt) {
  for (int file = 0; file < 3; ++file) {
    const std::string folder = SavedToy("run");
    const std::string path = StrCat(folder, "/rank-", file, ".safetensors");
    FlipBit(path, ReadFile(path).size() - 3);
    for (const std::string& message : ExpectRefused(folder, ErrorCode::kData)) {
      ExpectPart(message, path);
      ExpectPart(message, "corrupted");
    }
  }
}

TEST(CheckpointFailureTest, ADamagedHeaderIsFound) {
  const std::string folder = SavedToy("run");
  FlipBit(folder + "/rank-0.safetensors", 1);
  ExpectRefused(folder, ErrorCode::kData);
}

TEST(CheckpointFailureTest, AMissingManifestMeansNoCheckpoint) {
  const std::string folder = SavedToy("run");
  fs::remove(folder + "/manifest.json");
  ExpectPart(Refusal(folder), folder + " holds no complete checkpoint");
  const std::string dir = fs::path(folder).parent_path();
  ExpectPart(Refusal(dir), "names step-2, but");
  Overwrite(dir + "/latest", "../etc\n");
  ExpectPart(Refusal(dir), "must hold the name of a step's folder");
  ExpectPart(Refusal(dir + "/none"), "does not exist");
  fs::remove(dir + "/latest");
  ExpectPart(Refusal(dir), "holds no complete checkpoint");
}

TEST(CheckpointFailureTest, ADamagedManifestIsFound) {
  const std::string folder = SavedToy("run");
  const std::string path = folder + "/manifest.json";
  const std::string text = ReadFile(path);
  Overwrite(path, text.substr(0, text.size() / 2));
  ExpectPart(Refusal(folder), "truncated or corrupted");
  Overwrite(path, text);
  Replace(path, "\"iteration\": 2", "\"iteration\": 3");
  ExpectPart(Refusal(folder), "the file is corrupted");
}

// Case B061.
TEST(CheckpointFailureTest, AnotherFormatVersionIsRefusedWithBoth) {
  const std::string folder = SavedToy("run");
  Replace(folder + "/manifest.json", "\"format_version\": 1",
          "\"format_version\": 7");
  ExpectPart(Refusal(folder), "format version 7, this program reads version 1");
}

TEST(CheckpointFailureTest, RangesMustCoverEachParameterOnce) {
  const std::string folder = SavedToy("run");
  Manifest manifest = ReadManifest(folder);
  const auto refused = [&](const Manifest& changed) {
    Overwrite(folder + "/manifest.json", ManifestText(changed));
    return Refusal(folder);
  };
  Manifest hole = manifest;
  hole.files[0].ranges.erase(hole.files[0].ranges.begin());
  ExpectPart(refused(hole), "'in.weight' weight must cover its 257 elements");
  Manifest overlap = manifest;
  overlap.files[1].ranges.push_back(overlap.files[0].ranges[0]);
  ExpectPart(refused(overlap), "overlap");
  // A file that does not hold what the manifest promises.
  Manifest other = manifest;
  std::swap(other.files[0].name, other.files[1].name);
  std::swap(other.files[0].nbytes, other.files[1].nbytes);
  refused(other);
}

// --- misfits ---

TEST(CheckpointFailureTest, NamesAndShapesMustBeTheModels) {
  const std::string folder = SavedToy("run");
  Manifest manifest = ReadManifest(folder);
  const auto refused = [&](const Manifest& changed) {
    Overwrite(folder + "/manifest.json", ManifestText(changed));
    return Refusal(folder);
  };
  Manifest renamed = manifest;
  renamed.parameters[0].name = "in.weigth";
  const std::string message = refused(renamed);
  ExpectPart(message,
             "'in.weight' is missing (the nearest there is 'in.weigth')");
  ExpectPart(message,
             "'in.weigth' is unexpected (the nearest in the model is "
             "'in.weight')");
  Manifest reshaped = manifest;
  reshaped.parameters[0].shape = {1, 257};
  ExpectPart(refused(reshaped),
             "'in.weight' must have the shape [257, 1], it has [1, 257]");
  Manifest untied = manifest;
  for (ManifestParameter& p : untied.parameters) p.aliases.clear();
  ExpectPart(refused(untied),
             "one parameter has the names 'out.mix', 'out.mix_again' in the "
             "model and 'out.mix' there");
}

TEST(CheckpointFailureTest, StatesMustBeThoseOfTheRun) {
  const std::string folder = SavedToy("run");
  RunSpec spec;
  spec.optimizer = "SGD";
  ExpectPart(Refusal(folder, {}, spec), "the optimizer keeps 0 moments");
  ExpectPart(Refusal(folder, {}, spec), "the optimizer and the frozen");
  spec = {};
  spec.freeze = false;
  ExpectPart(Refusal(folder, {}, spec),
             "'mid.scale' is trained in the model and was frozen there");
  RunToy(spec, [&](Engine& engine, const Toy& toy) {
    LoadCheckpoint(engine, folder, {.weights_only = true});
    EXPECT_TRUE(toy.scale.info().trainable);
  });
}

// Case B059.
TEST(CheckpointFailureTest, AWeightsFileIsNoResume) {
  const std::string dir = FreshDir("run");
  const std::string path = dir + "/model.safetensors";
  SafetensorsWriter(path, {}).Finish();
  for (const std::string& given : {path, dir}) {
    const std::string message = Refusal(given);
    ExpectPart(message, path + " holds weights alone");
    ExpectPart(message, "goes on from a full checkpoint, a folder with latest");
  }
  ExpectPart(Refusal(path, {.weights_only = true}), "'in.weight' is missing");
}

TEST(CheckpointFailureTest, InsideAWindowNothingIsSavedOrLoaded) {
  const std::string folder = SavedToy("run");
  RunToy({}, [&](Engine& engine, const Toy& toy) {
    engine.Backward(ToyLoss(engine, toy));
    EXPECT_EQ(ErrorFrom([&] { SaveCheckpoint(engine, folder); }).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorFrom([&] { LoadCheckpoint(engine, folder); }).code(),
              ErrorCode::kInvalidArgument);
  });
}

// --- writing ---

TEST(CheckpointFailureTest, AFolderThatCannotBeMadeFailsOnAllRanks) {
  const std::string dir = FreshDir("run");
  Overwrite(dir + "/file", "not a folder");
  std::atomic<int> failed = 0;
  RunToy(SpecOf(3, 1), [&](Engine& engine, const Toy& toy) {
    const Error error =
        ErrorFrom([&] { SaveCheckpoint(engine, dir + "/file/inside"); });
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    ExpectPart(error.message(), dir + "/file");
    if (engine.runtime().rank() != 0)
      ExpectPart(error.message(), "failed on rank 0");
    ++failed;
    Train(engine, toy, 1);
    SaveCheckpoint(engine, dir);
  });
  EXPECT_EQ(failed, 3);
}

// One rank's file cannot be written; the checkpoint before stays the latest.
TEST(CheckpointFailureTest, AWriteFailureOfOneRankFailsTheSaveOnAll) {
  const std::string dir = FreshDir("run");
  Snapshot first;
  std::atomic<bool> armed = false;
  std::atomic<int> failed = 0;
  LaunchOptions options = OptionsOf(SpecOf(3, 3));
  // When the folder is there and before any rank writes into it.
  options.gate = [&](int rank, CollectiveOp, const CollectiveTag& tag) {
    if (rank != 0 || tag.what != "checkpoint outcome" || !armed) return;
    armed = false;
    fs::create_directories(dir + "/step-2.tmp/rank-1.safetensors/in_the_way");
  };
  FirstFailure failure;
  const int code = Launch(
      options,
      [&](Runtime& rt) {
        const Toy toy = MakeToy(rt.store());
        Engine engine(rt);
        Train(engine, toy, 1);
        SaveCheckpoint(engine, dir);
        const Snapshot snapshot = Read(engine);
        if (rt.rank() == 0) first = snapshot;
        Train(engine, toy, 1);
        if (rt.rank() == 0) armed = true;
        engine.Reduce(0);  // all see it
        const Error error = ErrorFrom([&] { SaveCheckpoint(engine, dir); });
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        ExpectPart(error.message(), "rank-1.safetensors");
        if (rt.rank() != 1) ExpectPart(error.message(), "failed on rank 1");
        ++failed;
      },
      &failure);
  EXPECT_EQ(code, 0) << failure.message;
  EXPECT_EQ(failed, 3);
  EXPECT_FALSE(fs::exists(dir + "/step-2"));
  EXPECT_FALSE(fs::exists(dir + "/step-2.tmp"));
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy&) {
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-1");
    EXPECT_EQ(Read(engine), first);
  });
}

// A save that has its name is a save; `latest` may be out of reach.
TEST(CheckpointFailureTest, LatestThatCannotBeWrittenIsANotice) {
  const std::string dir = FreshDir("run");
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy& toy) {
    const bool leads = engine.runtime().rank() == 0;
    Train(engine, toy, 1);
    SaveCheckpoint(engine, dir);
    Train(engine, toy, 1);
    if (leads) {
      fs::remove(dir + "/latest");
      fs::create_directories(dir + "/latest/in_the_way");
    }
    engine.Reduce(0);
    const SavedCheckpoint saved = SaveCheckpoint(engine, dir, {}, {.keep = 1});
    EXPECT_EQ(saved.path, dir + "/step-2");
    EXPECT_EQ(saved.notices.size(), leads ? 1u : 0u);
    if (leads)
      ExpectPart(saved.notices[0],
                 dir + "/step-2 is complete, but latest does not name it");
    const Snapshot snapshot = Read(engine);
    Train(engine, toy, 1);
    LoadCheckpoint(engine, dir + "/step-2");
    EXPECT_EQ(Read(engine), snapshot);
  });
  // What `latest` may still name is not removed.
  EXPECT_TRUE(fs::exists(dir + "/step-1/manifest.json"));
  EXPECT_FALSE(fs::exists(dir + "/step-2.tmp"));
}

TEST(CheckpointFailureTest, OldOnesThatCannotBeListedAreANotice) {
  const std::string dir = FreshDir("run");
  fs::create_symlink("step-0", dir + "/step-0");  // leads nowhere, for ever
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy& toy) {
    const bool leads = engine.runtime().rank() == 0;
    Train(engine, toy, 1);
    const SavedCheckpoint saved = SaveCheckpoint(engine, dir, {}, {.keep = 1});
    EXPECT_EQ(saved.notices.size(), leads ? 1u : 0u);
    if (leads) ExpectPart(saved.notices[0], "older checkpoints stay");
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-1");
  });
}

// A load casts without allocating: no budget of the host can end it half-way.
TEST(CheckpointFailureTest, ALoadNeedsNoHostMemory) {
  const std::string dir = FreshDir("run");
  const auto run = [&](bool bf16, const std::function<void(Engine&)>& fn) {
    LaunchOptions options = OptionsOf({.ranks = 2, .stage = 1, .bf16 = bf16});
    if (bf16) options.config.host_memory_nbytes = 64;
    ParameterGroup& group =
        options.config.parameter_groups.emplace().emplace_back();
    group.match = "^f$";
    group.frozen = true;
    FirstFailure failure;
    const int code = Launch(
        options,
        [&](Runtime& rt) {
          ParameterStore& store = rt.store();
          const auto unit = store.OpenUnit("u");
          (void)store.Declare(unit, {"w", {5}, Init::Normal(1)});
          (void)store.Declare(unit, {"f", {10007}, Init::Normal(1)});
          Engine engine(rt);
          fn(engine);
        },
        &failure);
    EXPECT_EQ(code, 0) << failure.message;
  };
  Snapshot saved;
  run(false, [&](Engine& engine) {
    SaveCheckpoint(engine, dir);
    const Snapshot snapshot = Read(engine);
    if (engine.runtime().rank() == 0) saved = snapshot;
  });
  const std::vector<float> want = terrace::testing::Floats(saved.at("0 f"));
  run(true, [&](Engine& engine) {
    EXPECT_EQ(LoadCheckpoint(engine, dir).notices.size(), 1u);
    int64_t seen = 0;
    engine.store().ForEachShard(
        StateKind::kWorking, [&](std::string_view name, const Range& range,
                                 const ConstView& values) {
          if (name != "f") return;
          for (int64_t i = 0; i < values.numel(); ++i, ++seen)
            EXPECT_EQ(static_cast<float>(values.as<BF16>()[i]),
                      static_cast<float>(
                          BF16(want[static_cast<size_t>(range.begin + i)])));
        });
    EXPECT_EQ(engine.Reduce(static_cast<double>(seen)), 10007);
  });
}

// Ranks that read different files of weights, of the same names and shapes.
TEST(CheckpointFailureTest, AFileOfWeightsMustBeOneOnAllRanks) {
  const std::string dir = FreshDir("run");
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<float> values(257, static_cast<float>(rank));
    SafetensorsWriter writer(StrCat(dir, "/", rank, ".safetensors"),
                             {{"w", DType::kF32, {257}}});
    writer.Write("w", std::as_bytes(std::span(values)));
    writer.Finish();
  }
  LaunchOptions options = OptionsOf(SpecOf(2, 1));
  options.config.parameter_groups.reset();
  for (bool same : {true, false}) {
    FirstFailure failure;
    const int code = Launch(
        options,
        [&](Runtime& rt) {
          ParameterStore& store = rt.store();
          (void)store.Declare(store.OpenUnit("u"), {"w", {257}, Init::Ones()});
          Engine engine(rt);
          const int file = same ? 0 : rt.rank();
          LoadCheckpoint(engine, StrCat(dir, "/", file, ".safetensors"),
                         {.weights_only = true});
        },
        &failure);
    EXPECT_EQ(code, same ? 0 : ExitCode(ErrorCode::kCommunication));
    if (!same) ExpectPart(failure.message, "the checkpoint that is loaded");
  }
}

// A weight that is not a number, on the rank that owns it, ends the save on all
// ranks with its name; what was there stays. A frozen one may be infinite.
TEST(CheckpointFailureTest, WeightsThatAreNotFiniteAreNotSaved) {
  const std::string dir = FreshDir("run");
  for (const int stage : {0, 3}) {
    RunToy(SpecOf(2, stage), [&](Engine& engine, const Toy& toy) {
      const auto set = [&](const char* name, float value) {
        engine.store().Edit(name, [&](NamedTensor& t) {
          t.values.data<float>()[t.values.numel() - 1] = value;
        });
      };
      set("mid.scale", -INFINITY);
      SaveCheckpoint(engine, dir);
      set("mid.scale", 1);
      Train(engine, toy, 1);
      set("mid.weight", NAN);
      EXPECT_EQ(engine.ReduceMax({FirstNonFinite(engine).empty() ? 0.0 : 1.0}),
                std::vector<double>{1});
      const Error error = ErrorFrom([&] { SaveCheckpoint(engine, dir); });
      EXPECT_EQ(error.code(), ErrorCode::kData);
      ExpectPart(error.message(), "'mid.weight' must be finite");
      ExpectPart(error.message(), "step 1");
      LoadCheckpoint(engine, dir);
      EXPECT_EQ(FirstNonFinite(engine), "");
    });
    ASSERT_EQ(ListCheckpoints(dir).size(), 1u);
    EXPECT_EQ(ListCheckpoints(dir)[0].iteration, 0);
  }
}

// --- a directory of checkpoints ---

TEST(CheckpointDirectoryTest, KeepsTheNewestAndFollowsLatest) {
  const std::string dir = FreshDir("run");
  EXPECT_TRUE(ListCheckpoints(dir + "/none").empty());
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy& toy) {
    for (int i = 0; i < 5; ++i) {
      Train(engine, toy, 3);
      EXPECT_TRUE(SaveCheckpoint(engine, dir).notices.empty());
    }
  });
  std::vector<int64_t> iterations;
  for (const CheckpointEntry& entry : ListCheckpoints(dir))
    iterations.push_back(entry.iteration);
  EXPECT_EQ(iterations, (std::vector<int64_t>{12, 15}));
  EXPECT_EQ(ReadFile(dir + "/latest"), "step-15\n");
  // Resumed at 12: 13 becomes the latest, 15 stays.
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy& toy) {
    LoadCheckpoint(engine, dir + "/step-12");
    Train(engine, toy, 1);
    SaveCheckpoint(engine, dir, {}, {.keep = 1});
  });
  EXPECT_EQ(ReadFile(dir + "/latest"), "step-13\n");
  EXPECT_FALSE(fs::exists(dir + "/step-12"));
  EXPECT_TRUE(fs::exists(dir + "/step-15"));
}

TEST(CheckpointDirectoryTest, TheSameStepIsReplaced) {
  const std::string dir = FreshDir("run");
  for (int ranks : {3, 2}) {
    RunToy(SpecOf(ranks, 1), [&](Engine& engine, const Toy& toy) {
      Train(engine, toy, 2);
      SaveCheckpoint(engine, dir);
    });
  }
  EXPECT_EQ(ReadManifest(dir + "/step-2").world_size, 2);
  EXPECT_FALSE(fs::exists(dir + "/step-2/rank-2.safetensors"));
  EXPECT_FALSE(fs::exists(dir + "/step-2.tmp"));
}

// Case B061: scalars are typed members, exact through text.
TEST(CheckpointManifestTest, TextReadsBackExactly) {
  const std::string dir = FreshDir("run");
  Manifest manifest;
  manifest.world_size = 2;
  manifest.working = DType::kBF16;
  manifest.counters.iteration = int64_t{1} << 60;
  manifest.counters.applied_steps = 9007199254740993;  // not a double
  manifest.optimizer.lr = 0.1 + 0.2;
  manifest.optimizer.beta2 = 0.95;
  manifest.extras = {.config_resolved_json = "{\n\"a\": \"\\u00e9\"}",
                     .dataset_fingerprint = "f",
                     .seed = ~uint64_t{0},
                     .more = {{"loss scale", "65536"}}};
  manifest.parameters.push_back({.name = "a\"b",
                                 .shape = {0, 3},
                                 .dtype = DType::kF16,
                                 .unit = "u",
                                 .aliases = {"c"},
                                 .step = 9007199254740993,
                                 .trainable = true,
                                 .group = {0.1, 0.3}});
  const std::string text = ManifestText(manifest);
  Overwrite(dir + "/manifest.json", text);
  const Manifest read = ReadManifest(dir);
  EXPECT_EQ(ManifestText(read), text);
  EXPECT_EQ(read.counters.applied_steps, 9007199254740993);
  EXPECT_EQ(read.parameters[0].step, 9007199254740993);
  EXPECT_EQ(read.optimizer.lr, 0.1 + 0.2);
  EXPECT_EQ(read.extras.seed, ~uint64_t{0});
  EXPECT_EQ(read.extras.more.at("loss scale"), "65536");
  EXPECT_EQ(read.parameters[0].aliases, std::vector<std::string>{"c"});
}

}  // namespace
}  // namespace terrace::zero
