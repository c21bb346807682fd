// Writes JSON text front to back: metrics lines, manifests, traces.
//
//   JsonWriter json;
//   json.BeginObject();
//   json.Field("step", 3);
//   json.Field("loss", 2.5f);               // shortest text that reads back
//   json.Key("lr").Double(1e-3, 9);         // 9 significant digits
//   json.Key("shape").BeginArray().Int(2).Int(4).EndArray();
//   json.EndObject();
//   file << std::move(json).Text();         // {"step":3,"loss":2.5,...}
//
// NaN and infinities become the strings "nan", "inf" and "-inf", because JSON
// has no such numbers. Text that is not UTF-8 has its bad bytes replaced by
// U+FFFD. A call that cannot be right (a value without its key, an End without
// its Begin) throws kInternal. Not for use by several threads at once.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace terrace {

class JsonWriter {
 public:
  // indent > 0: one member a line, nested by so many spaces. 0: one line.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  JsonWriter& BeginObject() { return Begin('{'); }
  JsonWriter& EndObject() { return End('{', '}'); }
  JsonWriter& BeginArray() { return Begin('['); }
  JsonWriter& EndArray() { return End('[', ']'); }
  JsonWriter& Key(std::string_view key);

  JsonWriter& String(std::string_view text);
  JsonWriter& Int(int64_t value);
  JsonWriter& UInt(uint64_t value);
  // digits: significant ones, 1 to 17; 0 is as few as read back to `value`.
  JsonWriter& Double(double value, int digits = 0);
  JsonWriter& Float(float value);  // as few digits as read back to a float
  JsonWriter& Bool(bool value);
  JsonWriter& Null();

  // Key and value in one call, by the value's type.
  template <class T>
  JsonWriter& Field(std::string_view key, const T& value) {
    Key(key);
    if constexpr (std::same_as<T, bool>) {
      return Bool(value);
    } else if constexpr (std::signed_integral<T>) {
      return Int(value);
    } else if constexpr (std::unsigned_integral<T>) {
      return UInt(value);
    } else if constexpr (std::same_as<T, float>) {
      return Float(value);
    } else if constexpr (std::floating_point<T>) {
      return Double(value);
    } else {
      return String(value);
    }
  }

  // The text, once every Begin has had its End.
  const std::string& Text() const&;
  std::string Text() &&;

 private:
  struct Level {
    char kind;  // { or [
    bool empty = true;
  };
  JsonWriter& Begin(char kind);
  JsonWriter& End(char kind, char closing);
  void BeforeValue();
  void NewLine();

  int indent_;
  std::string text_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

// `text` in quotes, escaped, as JSON wants it.
std::string JsonQuote(std::string_view text);

bool IsValidUtf8(std::string_view text);

}  // namespace terrace
