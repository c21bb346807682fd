#include "terrace/tools/flags.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <type_traits>

#include "terrace/core/error.h"

namespace terrace::tools {
namespace {

// The whole text as a T, or nothing.
template <class T>
std::optional<T> Read(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string Limits(const IntRange& range) {
  constexpr IntRange kAll;
  if (range.least == kAll.least && range.most == kAll.most) return "";
  if (range.most == kAll.most) return StrCat(" of at least ", range.least);
  return StrCat(" from ", range.least, " to ", range.most);
}

std::string Limits(const NumberRange& range) {
  constexpr NumberRange kAll;
  std::string text;
  if (range.least != kAll.least)
    text = StrCat(range.above_least ? " above " : " of at least ", range.least);
  if (range.most != kAll.most)
    text += StrCat(text.empty() ? "" : " and", " at most ", range.most);
  return text;
}

std::string_view WithoutDashes(std::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

// The flag that `given` may have meant, or "". The dashes count for nothing:
// all flags share them.
std::string NearestFlag(std::string_view given,
                        const std::vector<std::string>& names) {
  std::vector<std::string_view> words;
  for (const std::string& name : names) words.push_back(WithoutDashes(name));
  const std::string nearest = NearestName(WithoutDashes(given), words);
  if (nearest.empty()) return "";
  return "--" + nearest;
}

}  // namespace

struct Flags::Impl {
  Impl(std::string_view command, std::string_view summary)
      : command(command),
        app(std::string(summary), "terrace " + std::string(command)) {
    app.allow_extras();  // refused below, with the nearest name
    app.get_formatter()->column_width(34);
  }

  CLI::Option* Add(CLI::Option* option, const char* value) {
    if (*value != 0) option->type_name(value);
    last = option;
    return option;
  }

  // A number is read after all words are taken, so that the message is ours.
  template <class T, class Range>
  void AddNumber(const char* name, T* out, const char* value, const char* help,
                 const Range& range, const char* what) {
    names.emplace_back(name);
    std::string& text = texts.emplace_back();
    CLI::Option* option = Add(app.add_option(name, text, help), value);
    option->default_str(StrCat(*out));
    readers.push_back([=, this, &text] {
      if (option->count() == 0) return;
      const std::optional<T> given = Read<T>(text);
      bool valid =
          given.has_value() && *given >= range.least && *given <= range.most;
      if constexpr (std::is_floating_point_v<T>)
        valid = valid && !(range.above_least && *given == range.least);
      if (!valid)
        TERRACE_THROW(ErrorCode::kUsage, "[", command, "] ", name, " must be ",
                      what, Limits(range), ", got '", text, "'");
      *out = *given;
    });
  }

  [[noreturn]] void ThrowEmpty(const CLI::Option& option) const {
    std::string value = option.get_type_name();  // "[KEY]" where it is optional
    if (value.starts_with('[')) value = value.substr(1, value.size() - 2);
    TERRACE_THROW(ErrorCode::kUsage, "[", command, "] ", option.get_name(),
                  " must be ", value, ", got '' (an unset variable?)");
  }

  [[noreturn]] void ThrowMismatch(const CLI::ParseError& e) const {
    // "--name: what CLI11 found", but for one message.
    const std::string text = e.what();
    constexpr std::string_view kOverride =
        " was given a disallowed flag override";
    if (text.ends_with(kOverride))
      TERRACE_THROW(ErrorCode::kUsage, "[", command, "] --",
                    text.substr(0, text.size() - kOverride.size()),
                    " takes no value");
    const std::string name = text.substr(0, text.find(':'));
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr)
      TERRACE_THROW(ErrorCode::kUsage, "[", command, "] ", text, " (terrace ",
                    command, " --help)");
    if (option->count() > 1 && option->get_expected_max() == 1)
      TERRACE_THROW(ErrorCode::kUsage, "[", command, "] ", name,
                    " may be given once, it is given ", option->count(),
                    " times");
    TERRACE_THROW(ErrorCode::kUsage, "[", command, "] ", name,
                  " needs a value: ", name, " ", option->get_type_name());
  }

  std::string command;
  CLI::App app;
  CLI::Option* last = nullptr;
  std::vector<std::string> names = {"--help"};
  std::deque<std::string> texts;  // of numbers; they stay where they are
  std::vector<std::function<void()>> readers;
  std::vector<CLI::Option*> required, not_empty;
  // Beside each value of OptionalText, the words of its flag.
  struct Words {
    CLI::Option* option;
    std::vector<std::string> given;
    std::optional<std::string>* out;
  };
  std::vector<std::unique_ptr<Words>> optionals;
};

Flags::Flags(std::string_view command, std::string_view summary)
    : impl_(std::make_unique<Impl>(command, summary)) {}

Flags::~Flags() = default;

Flags& Flags::Text(const char* name, std::string* out, const char* value,
                   const char* help) {
  impl_->names.emplace_back(name);
  impl_->Add(impl_->app.add_option(name, *out, help), value);
  return *this;
}

Flags& Flags::Int(const char* name, int64_t* out, const char* value,
                  const char* help, IntRange range) {
  impl_->AddNumber(name, out, value, help, range, "an integer");
  return *this;
}

Flags& Flags::Number(const char* name, double* out, const char* value,
                     const char* help, NumberRange range) {
  impl_->AddNumber(name, out, value, help, range, "a number");
  return *this;
}

Flags& Flags::Switch(const char* name, bool* out, const char* help) {
  impl_->names.emplace_back(name);
  impl_->Add(impl_->app.add_flag(name, *out, help), "")
      ->disable_flag_override();
  return *this;
}

Flags& Flags::List(const char* name, std::vector<std::string>* out,
                   const char* value, const char* help) {
  impl_->names.emplace_back(name);
  // One value a time, or it would take the words that follow.
  impl_->Add(impl_->app.add_option(name, *out, help), value)
      ->type_size(1)
      ->allow_extra_args(false);
  return *this;
}

Flags& Flags::Words(const char* name, std::vector<std::string>* out,
                    const char* value, const char* help) {
  impl_->names.emplace_back(name);
  impl_->Add(impl_->app.add_option(name, *out, help), value)->type_size(1);
  return *this;
}

Flags& Flags::OptionalText(const char* name, std::optional<std::string>* out,
                           const char* value, const char* help) {
  impl_->names.emplace_back(name);
  auto words = std::make_unique<Impl::Words>();
  words->out = out;
  words->option =
      impl_->Add(impl_->app.add_option(name, words->given, help), value);
  words->option->expected(0, 1);
  impl_->optionals.push_back(std::move(words));
  return *this;
}

Flags& Flags::Positional(const char* name, std::string* out, const char* help) {
  impl_->Add(impl_->app.add_option(name, *out, help), "");
  return *this;
}

Flags& Flags::Required() {
  // Not by CLI11: a misspelt flag is the better message than a missing one.
  impl_->required.push_back(impl_->last);
  return *this;
}

Flags& Flags::NotEmpty() {
  impl_->not_empty.push_back(impl_->last);
  return *this;
}

bool Flags::Parse(const Args& args) {
  // To CLI11 it is the flag alone.
  for (const auto& words : impl_->optionals) {
    const std::string name = words->option->get_name();
    for (size_t i = 0; i < args.size(); ++i)
      if (args[i] == name + "=" ||
          (args[i] == name && i + 1 < args.size() && args[i + 1].empty()))
        impl_->ThrowEmpty(*words->option);
  }
  // CLI11 takes them last first.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    impl_->app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    std::fputs(impl_->app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    impl_->ThrowMismatch(e);
  }
  for (const std::string& extra : impl_->app.remaining()) {
    const std::string name = extra.substr(0, extra.find('='));
    const std::string nearest = NearestFlag(name, impl_->names);
    TERRACE_THROW(ErrorCode::kUsage, "[", impl_->command, "] there is no ",
                  name.starts_with('-') ? "flag " : "argument ", name,
                  nearest.empty()
                      ? StrCat(" (terrace ", impl_->command, " --help)")
                      : ", did you mean " + nearest + "?");
  }
  for (const CLI::Option* option : impl_->required)
    if (option->count() == 0)
      TERRACE_THROW(ErrorCode::kUsage, "[", impl_->command, "] needs ",
                    option->get_name(), " (terrace ", impl_->command,
                    " --help)");
  for (const CLI::Option* option : impl_->not_empty)
    if (std::ranges::count(option->results(), "") > 0)
      impl_->ThrowEmpty(*option);
  for (const auto& read : impl_->readers) read();
  for (const auto& words : impl_->optionals) {
    if (words->option->count() == 0) continue;
    const auto& given = words->given;
    *words->out = given.empty() ? std::string() : given.back();
  }
  return true;
}

bool Flags::Given(const char* name) const { return impl_->app.count(name) > 0; }

void internal::ThrowOfFlag(std::string_view command, std::string_view flag,
                           const Error& error) {
  std::string_view text = error.message();
  // What the file is for says more than where it failed to open.
  if (text.starts_with('[') && text.find("] ") != std::string_view::npos)
    text.remove_prefix(text.find("] ") + 2);
  TERRACE_THROW(error.code(), "[", command, "] ", flag, ": ", text);
}

}  // namespace terrace::tools
