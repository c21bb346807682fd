// Model configurations from JSON: Hugging Face's config.json, pasted into the
// `model` section of a run file or read from a folder.
//
//   Gpt2Config config = ReadGpt2Config(ReadJsonFile("config.json"));
//
// Strict: an unknown key is Error{kConfig} with its place and the nearest known
// one, and so is a value that would change the mathematics. Keys that Hugging
// Face writes and that mean nothing here are accepted.
#pragma once

#include "terrace/models/gpt2.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::models {

// `node`: an object, or the name of a preset as a string. Absent keys have
// Hugging Face's defaults.
Gpt2Config ReadGpt2Config(const zero::JsonNode& node);

// A config.json that Hugging Face reads.
zero::JsonNode ToJson(const Gpt2Config& config);

}  // namespace terrace::models
