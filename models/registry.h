// The models by name: an explicit table, no registration.
//
//   auto model = models::MakeModel(nn::Scope(rt.store()), run.model);
//
// To add a model: its files, a row in registry.cc, a parity test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "terrace/models/model.h"
#include "terrace/nn/module.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::models {

// `node`: the `model` section of a run file or a config.json, an object with
// "model_type", or a preset's name as a string. Declares the parameters. Throws
// kConfig with the place and the nearest valid name.
std::unique_ptr<Model> MakeModel(const nn::Scope& scope,
                                 const zero::JsonNode& node);

std::vector<std::string> ModelTypes();  // "gpt2", ...
std::vector<std::string> PresetNames();

}  // namespace terrace::models
