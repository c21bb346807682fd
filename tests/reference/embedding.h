// Table lookup and its gradient in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace::reference {

inline std::vector<double> Embedding(const std::vector<int32_t>& ids,
                                     const std::vector<double>& table,
                                     size_t width) {
  std::vector<double> out;
  for (const int32_t id : ids)
    for (size_t c = 0; c < width; ++c)
      out.push_back(table[static_cast<size_t>(id) * width + c]);
  return out;
}

// Adds to `dtable`.
inline void EmbeddingBackward(const std::vector<int32_t>& ids,
                              const std::vector<double>& dy, size_t width,
                              std::vector<double>* dtable) {
  for (size_t i = 0; i < ids.size(); ++i)
    for (size_t c = 0; c < width; ++c)
      (*dtable)[static_cast<size_t>(ids[i]) * width + c] += dy[i * width + c];
}

}  // namespace terrace::reference
