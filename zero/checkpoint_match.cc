#include "terrace/zero/checkpoint_match.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

constexpr size_t kListed = 6;  // differences named in a message

class Differences {
 public:
  void Add(std::string text) {
    if (count_++ < kListed) text_ += (text_.empty() ? "" : "; ") + text;
  }
  // Throws if there are any.
  void Check(const std::string& path, std::string_view rest = "") const {
    if (count_ == 0) return;
    TERRACE_THROW(
        ErrorCode::kData, "[checkpoint] ", path,
        " does not fit the model: ", text_,
        count_ > kListed ? StrCat("; and ", count_ - kListed, " more") : "",
        rest);
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

std::string Nearest(std::string_view name,
                    const std::vector<std::string>& names,
                    std::string_view where) {
  const std::string nearest = NearestName(name, names);
  return nearest.empty()
             ? ""
             : StrCat(" (the nearest ", where, " is '", nearest, "')");
}

std::string ToText(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

std::set<std::string> AllNames(const std::string& name,
                               const std::vector<std::string>& aliases) {
  std::set<std::string> names(aliases.begin(), aliases.end());
  names.insert(name);
  return names;
}

std::vector<size_t> MatchNames(const Layout& layout, const Manifest& manifest,
                               const std::string& path) {
  std::map<std::string_view, size_t> saved;  // by every name
  std::vector<std::string> saved_names, model_names;
  for (size_t i = 0; i < manifest.parameters.size(); ++i) {
    const ManifestParameter& p = manifest.parameters[i];
    saved_names.push_back(p.name);
    saved.emplace(p.name, i);
    for (const std::string& alias : p.aliases) saved.emplace(alias, i);
  }
  for (const ParamLayout& p : layout.params())
    model_names.push_back(p.spec.name);

  Differences differences;
  std::vector<size_t> match;
  std::vector<bool> used(manifest.parameters.size());
  for (const ParamLayout& p : layout.params()) {
    auto found = saved.find(p.spec.name);
    for (const std::string& alias : p.aliases)
      if (found == saved.end()) found = saved.find(alias);
    if (found == saved.end()) {
      differences.Add(StrCat("'", p.spec.name, "' is missing",
                             Nearest(p.spec.name, saved_names, "there")));
      continue;
    }
    match.push_back(found->second);
    used[found->second] = true;
  }
  for (size_t i = 0; i < used.size(); ++i) {
    const std::string& name = saved_names[i];
    if (!used[i])
      differences.Add(StrCat("'", name, "' is unexpected",
                             Nearest(name, model_names, "in the model")));
  }
  differences.Check(path);
  return match;
}

void CheckShapes(const Layout& layout, const Manifest& manifest,
                 const std::vector<size_t>& match, const std::string& path) {
  Differences differences;
  for (size_t i = 0; i < match.size(); ++i) {
    const ParamSpec& spec = layout.params()[i].spec;
    const Shape& shape = manifest.parameters[match[i]].shape;
    if (shape != spec.shape)
      differences.Add(StrCat("'", spec.name, "' must have the shape ",
                             spec.shape, ", it has ", shape));
  }
  differences.Check(path);
}

void CheckTies(const Layout& layout, const Manifest& manifest,
               const std::vector<size_t>& match, const std::string& path) {
  Differences differences;
  for (size_t i = 0; i < match.size(); ++i) {
    const ParamLayout& p = layout.params()[i];
    const ManifestParameter& saved = manifest.parameters[match[i]];
    const auto here = AllNames(p.spec.name, p.aliases);
    const auto there = AllNames(saved.name, saved.aliases);
    if (here != there)
      differences.Add(StrCat("one parameter has the names ", ToText(here),
                             " in the model and ", ToText(there), " there"));
  }
  differences.Check(path);
}

void CheckStates(const ParameterStore& store, const Manifest& manifest,
                 const std::vector<size_t>& match, const std::string& path) {
  Differences differences;
  const int moments = store.options().optimizer.moments();
  if (manifest.optimizer.moments() != moments)
    differences.Add(StrCat("the optimizer keeps ", Counted(moments, "moment"),
                           ", the checkpoint has ",
                           manifest.optimizer.moments()));
  for (size_t i = 0; i < match.size(); ++i) {
    const ParamSpec& spec = store.layout().params()[i].spec;
    const bool saved = manifest.parameters[match[i]].trainable;
    if (saved != spec.trainable)
      differences.Add(StrCat(
          "'", spec.name, "' is ", spec.trainable ? "trained" : "frozen",
          " in the model and was ", saved ? "trained" : "frozen", " there"));
  }
  differences.Check(path,
                    "; a run goes on with the optimizer and the frozen "
                    "parameters that it was saved with");
}

}  // namespace

std::vector<size_t> MatchModel(const ParameterStore& store,
                               const Manifest& manifest,
                               const std::string& path, bool weights_only) {
  const std::vector<size_t> match = MatchNames(store.layout(), manifest, path);
  CheckShapes(store.layout(), manifest, match, path);
  if (weights_only) return match;
  CheckTies(store.layout(), manifest, match, path);
  CheckStates(store, manifest, match, path);
  return match;
}

}  // namespace terrace::zero
