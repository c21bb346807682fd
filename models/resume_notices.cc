#include "terrace/models/resume_notices.h"

#include <algorithm>
#include <map>
#include <optional>

#include "terrace/core/error.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::models {
namespace {

using zero::JsonNode;

// Keys, and whole sections where they end in a dot.
constexpr std::string_view kDeciding[] = {
    "data.tokenizer",
    "deepspeed.bf16.",
    "deepspeed.communication_data_type",
    "deepspeed.data_types.",
    "deepspeed.fp16.",
    "deepspeed.gradient_accumulation_steps",
    "deepspeed.gradient_clipping",
    "deepspeed.optimizer.",
    "deepspeed.scheduler.",
    "deepspeed.terrace.gradient_reduction",
    "deepspeed.terrace.parameter_groups",
    "deepspeed.train_batch_size",
    "deepspeed.train_micro_batch_size_per_gpu",
};

bool Decides(std::string_view key) {
  return std::ranges::any_of(kDeciding, [&](std::string_view deciding) {
    return deciding.ends_with('.') ? key.starts_with(deciding)
                                   : key == deciding;
  });
}

std::optional<JsonNode> Parse(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return zero::ParseJson(text, "a checkpoint's settings");
  } catch (const Error&) {
    return std::nullopt;
  }
}

using Settings = std::map<std::string, std::string>;

std::optional<Settings> Read(const RunSettings& run) {
  Settings settings;
  const std::optional<JsonNode> config = Parse(run.config_resolved_json);
  const JsonNode* values =
      config.has_value() ? config->Member("values") : nullptr;
  if (values == nullptr) return std::nullopt;
  for (const zero::JsonMember& member : values->members) {
    const JsonNode* value = member.value.Member("value");
    if (value != nullptr && Decides(member.key))
      settings[member.key] = zero::ToJsonText(*value);
  }
  if (const auto model = Parse(run.model_json); model.has_value()) {
    if (!model->is_object()) settings["model"] = zero::ToJsonText(*model);
    for (const zero::JsonMember& member : model->members)
      settings["model." + member.key] = zero::ToJsonText(member.value);
  }
  return settings;
}

std::string More(const zero::CheckpointExtras& extras, const std::string& key) {
  const auto it = extras.more.find(key);
  return it == extras.more.end() ? "" : it->second;
}

// The one in force, given or not; "" where the checkpoint does not say.
std::string SequenceLength(const zero::CheckpointExtras& extras) {
  const std::optional<JsonNode> data = Parse(More(extras, "data"));
  const JsonNode* length =
      data.has_value() ? data->Member("sequence_length") : nullptr;
  return length == nullptr ? "" : zero::ToJsonText(*length);
}

std::vector<std::string_view> Facts(std::string_view text) {
  std::vector<std::string_view> facts;
  while (true) {
    const size_t end = std::min(text.find(", "), text.find("; "));
    facts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return facts;
    text.remove_prefix(end + 2);
  }
}

}  // namespace

std::vector<std::string> ChangedSettings(const RunSettings& before,
                                         const RunSettings& now) {
  const std::optional<Settings> old = Read(before), mine = Read(now);
  std::vector<std::string> notices;
  if (!old.has_value() || !mine.has_value()) return notices;
  const auto value = [](const Settings& of, const std::string& key) {
    const auto it = of.find(key);
    return it == of.end() ? std::string("absent") : it->second;
  };
  Settings keys = *old;
  keys.insert(mine->begin(), mine->end());
  for (const auto& [key, any] : keys) {
    const std::string was = value(*old, key), is = value(*mine, key);
    if (was != is)
      notices.push_back(StrCat(key, " was ", was, " and is now ", is));
  }
  return notices;
}

std::vector<std::string> ChangedData(const zero::CheckpointExtras& before,
                                     const zero::CheckpointExtras& now,
                                     const std::string& path) {
  std::vector<std::string> notices;
  const std::string old_length = SequenceLength(before),
                    length = SequenceLength(now);
  if (old_length != length && !old_length.empty())
    notices.push_back(StrCat("data.sequence_length was ", old_length,
                             " and is now ", length));
  if (before.seed != now.seed)
    notices.push_back(
        StrCat("the seed was ", before.seed, " and is now ", now.seed));
  const std::string old_text = More(before, kTextFingerprint);
  if (before.dataset_fingerprint.empty()) {
    notices.push_back(path + " does not say which text it is of");
  } else if (!old_text.empty()
                 ? old_text != More(now, kTextFingerprint)
                 : before.dataset_fingerprint != now.dataset_fingerprint) {
    const bool mixed = old_length != length || before.seed != now.seed ||
                       More(before, "tokenizer") != More(now, "tokenizer");
    notices.push_back(
        old_text.empty() && mixed
            ? StrCat("whether the text is that of ", path,
                     " cannot be told: it was saved by an earlier version")
            : StrCat("the text is not that of ", path,
                     ": its samples are counted on, in another order"));
  }
  return notices;
}

std::string ChangedEnvironment(std::string_view before, std::string_view now) {
  const std::vector<std::string_view> old = Facts(before), mine = Facts(now);
  if (old.size() != mine.size()) return StrCat(before, " -> ", now);
  std::string changed;
  for (size_t i = 0; i < old.size(); ++i) {
    if (old[i] == mine[i]) continue;
    if (!changed.empty()) changed += ", ";
    changed += StrCat(old[i], " -> ", mine[i]);
  }
  return changed;
}

}  // namespace terrace::models
