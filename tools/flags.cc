#include "terrace/tools/flags.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>

#include "terrace/core/error.h"

namespace terrace::tools {

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

  std::string command;
  CLI::App app;
  CLI::Option* last = nullptr;
  std::vector<std::string> names = {"--help"};
  std::vector<CLI::Option*> required;
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
                  const char* help) {
  impl_->names.emplace_back(name);
  impl_->Add(impl_->app.add_option(name, *out, help), value)
      ->capture_default_str();
  return *this;
}

Flags& Flags::Number(const char* name, double* out, const char* value,
                     const char* help) {
  impl_->names.emplace_back(name);
  impl_->Add(impl_->app.add_option(name, *out, help), value)
      ->capture_default_str();
  return *this;
}

Flags& Flags::Switch(const char* name, bool* out, const char* help) {
  impl_->names.emplace_back(name);
  impl_->Add(impl_->app.add_flag(name, *out, help), "");
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

bool Flags::Parse(const Args& args) {
  // CLI11 takes them last first.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    impl_->app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    std::fputs(impl_->app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    TERRACE_THROW(ErrorCode::kUsage, "[", impl_->command, "] ", e.what(),
                  " (terrace ", impl_->command, " --help)");
  }
  for (const std::string& extra : impl_->app.remaining()) {
    const std::string name = extra.substr(0, extra.find('='));
    const std::string nearest = NearestName(name, impl_->names);
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
  for (const auto& words : impl_->optionals) {
    if (words->option->count() == 0) continue;
    const auto& given = words->given;
    *words->out = given.empty() ? std::string() : given.back();
  }
  return true;
}

}  // namespace terrace::tools
