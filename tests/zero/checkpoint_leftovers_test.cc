// What a folder of checkpoints holds besides complete ones: saves that were cut
// short, files of somebody else, paths that lead nowhere.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "terrace/core/file.h"
#include "terrace/tests/zero/checkpoint_support.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {
namespace {

namespace fs = std::filesystem;
using terrace::testing::ErrorFrom;
using terrace::testing::ExpectPart;
using terrace::testing::FreshDir;
using terrace::testing::Overwrite;
using terrace::testing::RunSpec;
using terrace::testing::RunToy;
using terrace::testing::SavedToy;
using terrace::testing::Toy;
using terrace::testing::Train;

constexpr RunSpec SpecOf(int ranks, int stage) {
  return {.ranks = ranks, .stage = stage};
}

// What a process leaves that was killed while it saved.
TEST(CheckpointLeftoversTest, AnUnfinishedSaveIsIgnoredAndRemoved) {
  const std::string dir = fs::path(SavedToy("run")).parent_path();
  fs::create_directories(dir + "/step-9.tmp");
  Overwrite(dir + "/step-9.tmp/rank-0.safetensors", "half");
  fs::create_directories(dir + "/step-8");  // without a manifest
  fs::create_directories(dir + "/step-1");
  Overwrite(dir + "/step-1/rank-0.safetensors", "rest of a removal");
  fs::create_directories(dir + "/step-7");
  Overwrite(dir + "/step-7/notes.txt", "somebody's own");
  Overwrite(dir + "/latest.tmp.12.34", "ste");
  ASSERT_EQ(ListCheckpoints(dir).size(), 1u);
  RunToy(SpecOf(2, 0), [&](Engine& engine, const Toy& toy) {
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-2");
    Train(engine, toy, 1);
    SaveCheckpoint(engine, dir);
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-3");
  });
  for (const char* gone :
       {"step-9.tmp", "step-8", "step-1", "latest.tmp.12.34"})
    EXPECT_FALSE(fs::exists(dir + "/" + gone)) << gone;
  EXPECT_TRUE(fs::exists(dir + "/step-7/notes.txt"));
  // Killed before `latest` was written for the first time.
  fs::remove(dir + "/latest");
  RunToy({}, [&](Engine& engine, const Toy&) {
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-3");
  });
}

// On file systems that cannot exchange two names, a kill can come between the
// two renames.
TEST(CheckpointLeftoversTest, ACompleteOneWithoutItsNameGetsIt) {
  const std::string folder = SavedToy("run");
  const std::string dir = fs::path(folder).parent_path();
  fs::copy(folder, dir + "/step-2.old.tmp");
  fs::rename(folder, dir + "/step-2.tmp");
  RemoveUnfinished(dir);
  EXPECT_EQ(ReadManifest(folder).counters.iteration, 2);
  EXPECT_FALSE(fs::exists(dir + "/step-2.tmp"));
  EXPECT_FALSE(fs::exists(dir + "/step-2.old.tmp"));
  // And what an exchange put aside does not replace what it was replaced by.
  fs::create_directories(folder + ".tmp");
  Overwrite(folder + ".tmp/manifest.json", "old");
  RemoveUnfinished(dir);
  EXPECT_EQ(ReadManifest(folder).counters.iteration, 2);
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
}

TEST(CheckpointLeftoversTest, WhatLatestNamesStaysThoughItsManifestIsGone) {
  const std::string folder = SavedToy("run");
  const std::string dir = fs::path(folder).parent_path();
  fs::copy(folder, dir + "/step-1");
  fs::remove(dir + "/step-1/manifest.json");
  fs::remove(folder + "/manifest.json");
  RemoveUnfinished(dir);
  EXPECT_FALSE(fs::exists(dir + "/step-1"));
  EXPECT_TRUE(fs::exists(folder + "/rank-0.safetensors"));
  EXPECT_FALSE(HoldsNoCheckpoint(dir));
  fs::remove(dir + "/latest");
  RemoveUnfinished(dir);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_TRUE(HoldsNoCheckpoint(dir));
}

// `latest` goes on naming the one before: what is loaded does not change.
TEST(CheckpointLeftoversTest, ACompleteOneGetsItsNameBesideLatest) {
  const std::string dir = FreshDir("run");
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy& toy) {
    for (int i = 0; i < 2; ++i) {
      Train(engine, toy, 2);
      SaveCheckpoint(engine, dir);
    }
  });
  // Killed between the manifest and the name.
  fs::rename(dir + "/step-4", dir + "/step-4.tmp");
  Overwrite(dir + "/latest", "step-2\n");
  RemoveUnfinished(dir);
  const std::vector<CheckpointEntry> entries = ListCheckpoints(dir);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].iteration, 2);
  EXPECT_EQ(entries[1].iteration, 4);
  EXPECT_FALSE(fs::exists(dir + "/step-4.tmp"));
  EXPECT_EQ(ReadFile(dir + "/latest"), "step-2\n");
  RunToy({}, [&](Engine& engine, const Toy& toy) {
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-2");
    EXPECT_EQ(LoadCheckpoint(engine, dir + "/step-4").counters.iteration, 4);
    Train(engine, toy, 1);
    SaveCheckpoint(engine, dir);
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-5");
  });
}

TEST(CheckpointLeftoversTest, AFileNamedLikeAStepStopsNoSave) {
  const std::string dir = FreshDir("run");
  Overwrite(dir + "/step-5", "somebody's own");
  fs::create_directories(dir + "/step-9.tmp");
  RunToy(SpecOf(2, 1), [&](Engine& engine, const Toy& toy) {
    Train(engine, toy, 2);
    SaveCheckpoint(engine, dir);
    EXPECT_EQ(LoadCheckpoint(engine, dir).path, dir + "/step-2");
  });
  EXPECT_EQ(ReadFile(dir + "/step-5"), "somebody's own");
  EXPECT_FALSE(fs::exists(dir + "/step-9.tmp"));
}

// What the system refuses, here a link to itself, is kIo with the path.
TEST(CheckpointLeftoversTest, PathsThatCannotBeFollowedAreIo) {
  const auto expect_io = [](const std::function<void()>& fn,
                            const std::string& path) {
    const Error error = ErrorFrom(fn);
    EXPECT_EQ(error.code(), ErrorCode::kIo) << error.message();
    ExpectPart(error.message(), "[checkpoint] cannot read");
    ExpectPart(error.message(), path);
  };
  for (const char* name : {"rank-1.safetensors", "manifest.json"}) {
    const std::string folder = SavedToy("run"), path = folder + "/" + name;
    fs::remove(path);
    fs::create_symlink(name, path);
    expect_io([&] { InspectCheckpoint(folder); }, path);
    expect_io([&] { InspectCheckpoint(folder, false); }, path);
  }
  const std::string folder = SavedToy("run");
  const std::string part = folder + "/rank-1.safetensors";
  fs::remove(part);
  fs::create_directory(part);
  expect_io([&] { InspectCheckpoint(folder, false); }, part);
  fs::rename(folder, folder + ".tmp");
  fs::create_symlink("step-2", folder);
  expect_io([&] { RemoveUnfinished(fs::path(folder).parent_path()); }, folder);
}

}  // namespace
}  // namespace terrace::zero
