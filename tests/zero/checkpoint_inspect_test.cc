// InspectCheckpoint: what it tells, what it finds; and a file of one rank,
// which is no checkpoint.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "terrace/core/safetensors.h"
#include "terrace/tests/support/meanwhile.h"
#include "terrace/tests/zero/checkpoint_support.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {
namespace {

namespace fs = std::filesystem;
using terrace::testing::ErrorFrom;
using terrace::testing::ExpectPart;
using terrace::testing::FreshDir;
using terrace::testing::Meanwhile;
using terrace::testing::Overwrite;
using terrace::testing::RunToy;
using terrace::testing::SavedToy;
using terrace::testing::Toy;

// What a load on one rank says, as kData.
std::string Refusal(const std::string& path, const LoadOptions& options = {}) {
  std::string message;
  RunToy({}, [&](Engine& engine, const Toy&) {
    const Error error =
        ErrorFrom([&] { LoadCheckpoint(engine, path, options); });
    EXPECT_EQ(error.code(), ErrorCode::kData) << error.message();
    message = error.message();
  });
  return message;
}

TEST(CheckpointInspectTest, InspectTellsWhatIsInside) {
  const std::string folder = SavedToy("run");
  const CheckpointInspection found =
      InspectCheckpoint(fs::path(folder).parent_path());
  const std::string& text = found.text;
  EXPECT_EQ(found.damage, "");
  ExpectPart(text, "saved by 3 ranks, working dtype f32");
  ExpectPart(text, "iteration: 2, applied steps: 2, skipped: 0, samples: 24");
  ExpectPart(text, "parameters: 8, 1845 elements (5 frozen), 1 tied name\n");
  ExpectPart(text, "{\"model_type\": \"toy\"}");
  ExpectPart(text,
             "out.mix [5, 5] f32, unit 'out', step 2, also "
             "out.mix_again");
  ExpectPart(text, "mid.scale [5] f32, unit 'mid', frozen");
  for (const ManifestFile& file : ReadManifest(folder).files)
    ExpectPart(text, StrCat(file.name, " ", file.nbytes, " bytes, ",
                            file.ranges.size(), " of ", file.ranges.size(),
                            " checksums right"));
  fs::remove(folder + "/rank-1.safetensors");
  for (bool verify : {true, false}) {
    const CheckpointInspection missing = InspectCheckpoint(folder, verify);
    ExpectPart(missing.text, "MISSING");
    ExpectPart(missing.damage, "rank-1.safetensors is missing");
  }
}

// Whatever bit of a file's data is wrong, the checksums tell; the sizes do not,
// and a look at those alone says so.
TEST(CheckpointInspectTest, InspectFindsAFlippedBit) {
  const std::string folder = SavedToy("run");
  const std::string path = folder + "/rank-2.safetensors";
  const std::string whole = ReadFile(path);
  for (const size_t back : {size_t{1}, whole.size() / 4}) {
    std::string bytes = whole;
    bytes[bytes.size() - back] ^= 0x10;
    Overwrite(path, bytes);
    const CheckpointInspection found = InspectCheckpoint(folder);
    ExpectPart(found.text, "DAMAGED: [checkpoint] " + path);
    ExpectPart(found.damage, "the file is corrupted");
    const CheckpointInspection sizes = InspectCheckpoint(folder, false);
    ExpectPart(sizes.text, "size right, checksums not read");
    EXPECT_EQ(sizes.damage, "");
  }
  Overwrite(path, whole.substr(0, whole.size() - 3));
  ExpectPart(InspectCheckpoint(folder, false).damage, "it is truncated");
}

TEST(CheckpointInspectTest, AFileOfOneRankIsAPartAndNoCheckpoint) {
  const std::string folder = SavedToy("run");
  const std::string path = folder + "/rank-1.safetensors";
  for (const LoadOptions& options : {LoadOptions{}, {.weights_only = true}})
    ExpectPart(Refusal(path, options),
               path + " is one rank's part of the checkpoint " + folder +
                   ", a folder: give " + folder);
  ExpectPart(InspectCheckpoint(path).text, "one rank's part of the checkpoint");
  // Elsewhere the name says nothing.
  const std::string dir = FreshDir("alone");
  SafetensorsWriter(dir + "/rank-1.safetensors", {}).Finish();
  ExpectPart(Refusal(dir + "/rank-1.safetensors"), "holds weights alone");
}

TEST(CheckpointInspectTest, AWriterThatNobodyReadsComesToAnEnd) {
  const std::string dir = FreshDir("unread");
  bool changed = false;
  {
    const Meanwhile writer(dir + "/pipe", "text", [&] { changed = true; });
  }
  EXPECT_TRUE(changed);
}

TEST(CheckpointInspectTest, TheLatestIsFoundAgainWhenItIsRemovedMeanwhile) {
  const std::string folder = SavedToy("run");
  const std::string dir = fs::path(folder).parent_path();
  const std::string latest = dir + "/latest", next = dir + "/step-9";
  const auto rotate = [&] {
    WriteFileAtomically(latest, "step-9\n");
    fs::remove_all(folder);
  };
  fs::copy(folder, dir + "/kept", fs::copy_options::recursive);
  fs::copy(folder, next, fs::copy_options::recursive);
  {  // before its manifest is read
    const Meanwhile writer(folder + "/manifest.json", "", rotate);
    const CheckpointInspection found = InspectCheckpoint(dir);
    EXPECT_EQ(found.damage, "");
    ExpectPart(found.text, "checkpoint: " + next);
  }
  {  // before its folder is looked at
    const Meanwhile writer(latest, fs::path(folder).filename(), rotate);
    ExpectPart(InspectCheckpoint(dir).text, "checkpoint: " + next);
  }
  // Half of it is removed: the rest looks damaged, and another is the latest.
  fs::copy(dir + "/kept", folder, fs::copy_options::recursive);
  const std::string manifest = ReadFile(folder + "/manifest.json");
  WriteFileAtomically(latest, fs::path(folder).filename().string());
  {
    const Meanwhile writer(folder + "/manifest.json", manifest, [&] {
      WriteFileAtomically(latest, "step-9\n");
      fs::remove(folder + "/rank-1.safetensors");
    });
    const CheckpointInspection found = InspectCheckpoint(dir);
    EXPECT_EQ(found.damage, "");
    ExpectPart(found.text, "checkpoint: " + next);
  }
  // The folder that was given is the one that is read.
  {
    const Meanwhile writer(folder + "/manifest.json", "", rotate);
    const Error error = ErrorFrom([&] { InspectCheckpoint(folder); });
    EXPECT_EQ(error.code(), ErrorCode::kData);
    ExpectPart(error.message(), folder + "/manifest.json");
  }
  // A name of nothing stays one.
  WriteFileAtomically(latest, "step-77\n");
  ExpectPart(ErrorFrom([&] { InspectCheckpoint(dir); }).message(),
             "names step-77, but " + dir + "/step-77/manifest.json is missing");
}

}  // namespace
}  // namespace terrace::zero
