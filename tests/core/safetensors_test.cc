#include "terrace/core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "terrace/core/error.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Container(std::string_view header, std::string_view data) {
  const uint64_t nbytes = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &nbytes, 8);
  return file.append(header).append(data);
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "terrace_safetensors_test_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    MakeDirectories(folder_);
    path_ = folder_ + "/x.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The message of the kData error that reading `file` gives, or "".
  std::string ErrorOf(std::string_view file) {
    WriteFileAtomically(path_, file);
    try {
      const SafetensorsReader reader(path_);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData) << error.message();
      EXPECT_THAT(error.message(), HasSubstr(path_));
      return error.message();
    }
  }

  std::string folder_, path_;
};

TEST_F(SafetensorsTest, RoundTripKeepsEverything) {
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"q\"uote", "\n"}};
  SafetensorsWriter out(path_,
                        {{"b", DType::kU8, {3}},
                         {"empty", DType::kF32, {0, 1LL << 62, 8}},
                         {"a.weight", DType::kBF16, {2, 2}},
                         {"scalar", DType::kF64, {}},
                         {"name with \"\xc3\xa9\"", DType::kI64, {1}},
                         {"last empty", DType::kI32, {5, 0}}},
                        metadata);
  EXPECT_EQ(out.entries()[3].offset, 11);
  out.Write("b", BytesOf("123"));
  out.Write("empty", {});
  out.Write("a.weight", BytesOf("abc"));  // in pieces
  out.Write("a.weight", BytesOf("defgh"));
  out.Write("scalar", BytesOf("ABCDEFGH"));
  out.Write("name with \"\xc3\xa9\"", BytesOf("IJKLMNOP"));
  EXPECT_FALSE(std::filesystem::exists(path_));
  out.Finish();

  const SafetensorsReader in(path_);
  EXPECT_EQ(in.metadata(), metadata);
  ASSERT_EQ(in.entries().size(), 6u);
  for (const SafetensorsEntry& declared : out.entries()) {
    const SafetensorsEntry& read = in.Entry(declared.name);
    EXPECT_EQ(read.dtype, declared.dtype);
    EXPECT_EQ(read.shape, declared.shape);
    EXPECT_EQ(read.offset, declared.offset);
    EXPECT_EQ(read.nbytes, declared.nbytes);
  }
  EXPECT_EQ(TextOf(in.Data("b")), "123");
  EXPECT_EQ(TextOf(in.Data("a.weight")), "abcdefgh");
  EXPECT_EQ(TextOf(in.Data("scalar")), "ABCDEFGH");
  EXPECT_TRUE(in.Data("empty").empty());
  EXPECT_EQ(ReadFile(path_)[8], '{');
}

TEST_F(SafetensorsTest, NoTensorsAtAllIsAFile) {
  SafetensorsWriter(path_, {}).Finish();
  EXPECT_TRUE(SafetensorsReader(path_).entries().empty());
  EXPECT_EQ(ErrorOf(Container("{}", "")), "");
}

TEST_F(SafetensorsTest, ReadsForeignLayouts) {
  // Order of names differs from order of data, padding, odd alignment.
  EXPECT_EQ(ErrorOf(Container(
                R"({"z":{"shape":[1],"data_offsets":[3,7],"dtype":"F32"},)"
                R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                R"("__metadata__":{}}   )",
                "abcdefg")),
            "");
  const SafetensorsReader in(path_);
  EXPECT_EQ(in.entries()[0].name, "a");
  EXPECT_EQ(TextOf(in.Data("z")), "defg");
}

TEST_F(SafetensorsTest, UnknownNameIsNotFoundWithTheNearest) {
  SafetensorsWriter out(path_, {{"h.0.weight", DType::kU8, {1}}});
  out.Write("h.0.weight", BytesOf("1"));
  out.Finish();
  const SafetensorsReader in(path_);
  EXPECT_EQ(in.Find("h.1.weight"), nullptr);
  try {
    in.Data("h.1.weight");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.message(), HasSubstr("nearest is h.0.weight"));
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  SafetensorsWriter out(path_,
                        {{"a", DType::kF32, {2}}, {"b", DType::kU8, {1}}});
  out.Write("a", BytesOf("12345678"));
  out.Write("b", BytesOf("9"));
  out.Finish();
  const std::string whole = ReadFile(path_);
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_NE(ErrorOf(whole.substr(0, n)), "") << n;
  }
  EXPECT_THAT(ErrorOf(whole + "x"), HasSubstr("must end with its last tensor"));
}

TEST_F(SafetensorsTest, MissingFileIsIo) {
  try {
    SafetensorsReader in(folder_ + "/none");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
  }
}

struct BadHeader {
  const char* header;
  const char* reason;
};
// All with four bytes of data.
constexpr BadHeader kBadHeaders[] = {
    {"", "begins with {"},
    {" {}", "begins with {"},
    {"[]", "begins with {"},
    {"\xef\xbb\xbf{}", "begins with {"},
    {"{", "not valid JSON"},
    {"{} {}", "not valid JSON"},
    {"{\"a\xff\":1}", "not valid JSON"},
    {"{\"a\":1,}", "not valid JSON"},
    {R"({"a":3})", "must be an object, got number"},
    {R"({"a":[[[[[[1]]]]]]})", "nested too deeply"},
    {R"({"__metadata__":[]})", "must be an object, got array"},
    {R"({"__metadata__":{"k":1}})", "must hold strings, got number"},
    {R"({"__metadata__":{"k":"1","k":"2"}})", "\"k\" stands twice"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     "\"a\" stands twice"},
    {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     "\"dtype\" stands twice"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})",
     "unknown key \"x\""},
    {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "has no dtype"},
    {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "has no shape"},
    {R"({"a":{"dtype":"F32","shape":[1]}})", "has no data_offsets"},
    {R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})",
     "the dtype of \"a\" must be one of F64, F32, F16, BF16, I64, I32, U8, "
     "got F8_E4M3"},
    {R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", "got f32"},
    {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "got 7"},
    {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
     "must be an array, got number"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "got -1"},
    {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "got 1.0"},
    {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})",
     "got \"1\""},
    {R"({"a":{"dtype":"F32","shape":[9223372036854775808],)"
     R"("data_offsets":[0,4]}})",
     "got 9223372036854775808"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
     R"("data_offsets":[0,4]}})",
     "more bytes than can be counted"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
     "must have 8 bytes for F32[2], its data_offsets hold 4"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
     "must be [begin, end]"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
     "must be [begin, end]"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":"0,4"}})",
     "must be [begin, end]"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "got -4"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "must rise"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "a hole"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
     "a hole"},
    {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
     "they overlap"},
    {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
     "they overlap"},
    {R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "truncated"},
    {R"({"a":{"dtype":"U8","shape":[9223372036854775807],)"
     R"("data_offsets":[0,9223372036854775807]}})",
     "truncated"},
    {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
     "must end with its last tensor at byte 3, it has 4"},
    {"{}", "must end with its last tensor at byte 0, it has 4"},
};

TEST_F(SafetensorsTest, EveryMalformedHeaderIsRefusedWithItsReason) {
  for (const BadHeader& bad : kBadHeaders) {
    EXPECT_THAT(ErrorOf(Container(bad.header, "1234")), HasSubstr(bad.reason))
        << bad.header;
  }
  EXPECT_THAT(ErrorOf(Container(std::string_view("{}\0x", 4), "")),
              HasSubstr("begins with {"));
  std::string deep(100000, '[');
  EXPECT_THAT(ErrorOf(Container("{\"a\":" + deep, "")),
              HasSubstr("nested too deeply"));
}

TEST_F(SafetensorsTest, HeaderLengthIsBoundedByTheFile) {
  for (const uint64_t nbytes :
       {uint64_t{3}, uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7}) {
    std::string file = Container("{}", "");
    std::memcpy(file.data(), &nbytes, 8);
    EXPECT_THAT(ErrorOf(file), HasSubstr("must fit")) << nbytes;
  }
}

// Damage anywhere in the header gives an error or a reading that still obeys
// the checks, never a crash.
TEST_F(SafetensorsTest, FlippedBytesNeverReadOutside) {
  const std::string whole = Container(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234");
  for (size_t i = 0; i + 4 < whole.size(); ++i) {
    for (const int flip : {1, 2, 4, 16, 32, 128}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      if (ErrorOf(damaged).empty()) {
        const SafetensorsReader in(path_);
        for (const auto& e : in.entries()) {
          EXPECT_EQ(in.Data(e.name).size(), 4u);
        }
      }
    }
  }
}

TEST_F(SafetensorsTest, WriterRefusesWhatCannotBeRight) {
  const auto declare = [&](std::vector<SafetensorsEntry> entries) {
    SafetensorsWriter out(path_, std::move(entries));
  };
  EXPECT_THROW(declare({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}),
               Error);
  EXPECT_THROW(declare({{"__metadata__", DType::kU8, {1}}}), Error);
  EXPECT_THROW(declare({{"\xff", DType::kU8, {1}}}), Error);
  EXPECT_THROW(declare({{"a", DType::kU8, {-1}}}), Error);
  EXPECT_THROW(declare({{"a", DType::kF32, {1LL << 62}}}), Error);
  EXPECT_THROW(
      declare({{"a", DType::kU8, {1LL << 62}}, {"b", DType::kU8, {1LL << 62}}}),
      Error);
  {
    SafetensorsWriter out(path_,
                          {{"a", DType::kU8, {2}}, {"b", DType::kU8, {1}}});
    EXPECT_THROW(out.Write("b", BytesOf("1")), Error);
    out.Write("a", BytesOf("1"));
    EXPECT_THROW(out.Write("a", BytesOf("23")), Error);
    EXPECT_THROW(out.Finish(), Error);
    out.Write("a", BytesOf("2"));
    out.Write("b", BytesOf("3"));
    EXPECT_THROW(out.Write("b", BytesOf("4")), Error);
  }
  // Never finished: nothing is left.
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace terrace
