#include "terrace/models/config.h"

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::models {
namespace {

using zero::JsonKind;
using zero::JsonMember;
using zero::JsonNode;

// What Hugging Face writes beside the model itself: how it was made, used and
// printed.
constexpr std::string_view kInert[] = {"_name_or_path",
                                       "_num_labels",
                                       "architectures",
                                       "attn_implementation",
                                       "bos_token_id",
                                       "chunk_size_feed_forward",
                                       "dtype",
                                       "eos_token_id",
                                       "finetuning_task",
                                       "id2label",
                                       "label2id",
                                       "model_type",
                                       "n_special",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "output_past",
                                       "pad_token_id",
                                       "predict_special_tokens",
                                       "problem_type",
                                       "reorder_and_upcast_attn",
                                       "return_dict",
                                       "summary_activation",
                                       "summary_first_dropout",
                                       "summary_proj_to_labels",
                                       "summary_type",
                                       "summary_use_proj",
                                       "task_specific_params",
                                       "tokenizer_class",
                                       "torch_dtype",
                                       "transformers_version",
                                       "use_cache"};

// Only this value is GPT-2 as it is built here.
struct Fixed {
  std::string_view key;
  bool value;
  std::string_view instead;
};
constexpr Fixed kFixed[] = {
    {"scale_attn_weights", true, "scores are always scaled by 1/sqrt(D)"},
    {"scale_attn_by_inverse_layer_idx", false, "layers are not scaled"},
    {"add_cross_attention", false, "the model is a decoder alone"},
    {"is_encoder_decoder", false, "the model is a decoder alone"},
    {"gradient_checkpointing", false,
     "recomputation is deepspeed.terrace.activation_checkpointing_policy"}};

[[noreturn]] void Fail(const std::string& where, std::string_view key,
                       std::string_view must, const JsonNode& given) {
  TERRACE_THROW(ErrorCode::kConfig, "[config] ", where,
                where.empty() ? "" : ": ", "model key \"", key, "\" must be ",
                must, ", got ", zero::ToJsonText(given));
}

// The keys that are read, each with what it does to the config.
class Gpt2Keys {
 public:
  explicit Gpt2Keys(Gpt2Config* config) {
    Int("vocab_size", &config->vocab_size);
    Int("n_positions", &config->n_positions);
    Int("n_embd", &config->n_embd);
    Int("n_layer", &config->n_layer);
    Int("n_head", &config->n_head);
    Number("embd_pdrop", &config->embd_pdrop);
    Number("resid_pdrop", &config->resid_pdrop);
    Number("attn_pdrop", &config->attn_pdrop);
    Number("layer_norm_epsilon", &config->layer_norm_epsilon);
    Number("initializer_range", &config->initializer_range);
    Add("n_inner", [config](const JsonMember& m) {
      if (m.value.kind == JsonKind::kNull) return;
      if (m.value.kind != JsonKind::kInt || m.value.integer <= 0)
        Fail(m.value.Where(), m.key, "a positive integer or null", m.value);
      config->n_inner = m.value.integer;
    });
    Add("tie_word_embeddings", [config](const JsonMember& m) {
      config->tie_word_embeddings = Bool(m);
    });
    Add("activation_function", [](const JsonMember& m) {
      // Two names of the tanh form.
      if (m.value.text != "gelu_new" && m.value.text != "gelu_pytorch_tanh")
        Fail(m.value.Where(), m.key, "\"gelu_new\"", m.value);
    });
    // Checked against n_positions once both are known.
    Add("n_ctx", [](const JsonMember& m) {
      if (m.value.kind != JsonKind::kInt)
        Fail(m.value.Where(), m.key, "an integer", m.value);
    });
    for (const Fixed& fixed : kFixed) {
      Add(fixed.key, [fixed](const JsonMember& m) {
        if (Bool(m) != fixed.value)
          Fail(m.value.Where(), m.key,
               StrCat(fixed.value ? "true" : "false", " (", fixed.instead, ")"),
               m.value);
      });
    }
    for (const std::string_view key : kInert) Add(key, [](const auto&) {});
  }

  void Read(const JsonMember& member) const {
    std::vector<std::string_view> names;
    for (const auto& [name, read] : readers_) {
      if (name == member.key) return read(member);
      names.push_back(name);
    }
    const std::string nearest = NearestName(member.key, names);
    TERRACE_THROW(
        ErrorCode::kConfig, "[config] ", member.Where(),
        member.Where().empty() ? "" : ": ", "unknown gpt2 key \"", member.key,
        "\"", nearest.empty() ? "" : "; the nearest is \"" + nearest + "\"");
  }

 private:
  using Reader = std::function<void(const JsonMember&)>;

  void Add(std::string_view key, Reader reader) {
    readers_.emplace_back(key, std::move(reader));
  }
  void Int(std::string_view key, int64_t* value) {
    Add(key, [value](const JsonMember& m) {
      if (m.value.kind != JsonKind::kInt)
        Fail(m.value.Where(), m.key, "an integer", m.value);
      *value = m.value.integer;
    });
  }
  void Number(std::string_view key, double* value) {
    Add(key, [value](const JsonMember& m) {
      if (!m.value.is_number())
        Fail(m.value.Where(), m.key, "a number", m.value);
      *value = m.value.number;
    });
  }
  static bool Bool(const JsonMember& m) {
    if (m.value.kind != JsonKind::kBool)
      Fail(m.value.Where(), m.key, "true or false", m.value);
    return m.value.boolean;
  }

  std::vector<std::pair<std::string_view, Reader>> readers_;
};

// The limits, with the place of the key that a message begins with, "[gpt2]
// n_layer must ...", where it is given, or else of the section.
void CheckAt(const Gpt2Config& config, const JsonNode& node) {
  try {
    config.Check();
  } catch (const Error& error) {
    const std::string& text = error.message();
    const size_t key = text.find(' ') + 1;
    const JsonNode* const member =
        node.is_object() ? node.Member(std::string_view(text).substr(
                               key, text.find(' ', key) - key))
                         : nullptr;
    const std::string where = (member == nullptr ? node : *member).Where();
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", where,
                  where.empty() ? "" : ": ", "model: ", error.message());
  }
}

}  // namespace

Gpt2Config ReadGpt2Config(const JsonNode& node) {
  if (node.is_string()) {
    try {
      return Gpt2Config::Named(node.text);
    } catch (const Error& error) {
      const std::string where = node.Where();
      TERRACE_THROW(ErrorCode::kConfig, "[config] ", where,
                    where.empty() ? "" : ": ", "model: ", error.message());
    }
  }
  if (!node.is_object())
    Fail(node.Where(), "model", "an object or a preset's name", node);
  Gpt2Config config;
  const Gpt2Keys keys(&config);
  for (const JsonMember& member : node.members) keys.Read(member);
  const JsonNode* type = node.Member("model_type");
  if (type != nullptr && type->text != "gpt2")
    Fail(type->Where(), "model_type", "\"gpt2\"", *type);
  const JsonNode* n_ctx = node.Member("n_ctx");
  if (n_ctx != nullptr && n_ctx->integer != config.n_positions)
    Fail(n_ctx->Where(), "n_ctx", StrCat("n_positions=", config.n_positions),
         *n_ctx);
  CheckAt(config, node);
  return config;
}

JsonNode ToJson(const Gpt2Config& config) {
  JsonNode node;
  node.kind = JsonKind::kObject;
  auto set_int = [&](std::string_view key, int64_t value) {
    node.Set(key, zero::MakeJsonInt(value));
  };
  auto set_number = [&](std::string_view key, double value) {
    node.Set(key, zero::MakeJsonNumber(value));
  };
  JsonNode architectures;
  architectures.kind = JsonKind::kArray;
  architectures.elements = {zero::MakeJsonString("GPT2LMHeadModel")};
  node.Set("architectures", std::move(architectures));
  node.Set("model_type", zero::MakeJsonString("gpt2"));
  node.Set("activation_function", zero::MakeJsonString("gelu_new"));
  set_int("vocab_size", config.vocab_size);
  set_int("n_positions", config.n_positions);
  set_int("n_ctx", config.n_positions);
  set_int("n_embd", config.n_embd);
  set_int("n_layer", config.n_layer);
  set_int("n_head", config.n_head);
  if (config.n_inner != 0) set_int("n_inner", config.n_inner);
  set_number("embd_pdrop", config.embd_pdrop);
  set_number("resid_pdrop", config.resid_pdrop);
  set_number("attn_pdrop", config.attn_pdrop);
  set_number("layer_norm_epsilon", config.layer_norm_epsilon);
  set_number("initializer_range", config.initializer_range);
  node.Set("tie_word_embeddings",
           zero::MakeJsonBool(config.tie_word_embeddings));
  return node;
}

}  // namespace terrace::models
