#include "terrace/core/page_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/shape.h"

namespace terrace {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kLeastMapping = int64_t{32} << 20;

std::byte* Map(int64_t nbytes, bool untouched) {
  // As much more as it takes to begin on a huge page; both ends go again.
  const int64_t asked = nbytes + kHugePage;
  const int flags =
      MAP_PRIVATE | MAP_ANONYMOUS | (untouched ? MAP_NORESERVE : 0);
  void* const got = ::mmap(nullptr, static_cast<size_t>(asked),
                           PROT_READ | PROT_WRITE, flags, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(got);
  const auto head =
      static_cast<int64_t>((kHugePage - at % kHugePage) % kHugePage);
  std::byte* const data = static_cast<std::byte*>(got) + head;
  if (head > 0) ::munmap(got, static_cast<size_t>(head));
  ::munmap(data + nbytes, static_cast<size_t>(asked - head - nbytes));
  // Where the system has none it says so, and small pages do as well.
  if (!untouched)
    (void)::madvise(data, static_cast<size_t>(nbytes), MADV_HUGEPAGE);
  return data;
}

}  // namespace

int64_t PageNbytes() {
  static const int64_t nbytes = std::max<int64_t>(4096, ::getpagesize());
  return nbytes;
}

PageHeap::PageHeap(Grant grant, bool untouched)
    : fixed_(false), untouched_(untouched), grant_(std::move(grant)) {}

PageHeap::PageHeap(int64_t fixed_nbytes, bool untouched)
    : fixed_(true), untouched_(untouched) {
  Grow(fixed_nbytes);
}

PageHeap::~PageHeap() {
  for (const Mapping& mapping : mappings_)
    ::munmap(mapping.data, static_cast<size_t>(mapping.nbytes));
}

bool PageHeap::Grow(int64_t nbytes) {
  // To the page, not to the huge page: what followed the last block on its huge
  // page would be resident for nothing.
  const int64_t size = fixed_ ? nbytes : std::max(nbytes, kLeastMapping);
  if (grant_ && !grant_(size)) return false;
  std::byte* const data = Map(size, untouched_);
  if (data == nullptr) return false;
  mappings_.push_back({data, size});
  mapped_ += size;
  // Never joined with a neighbour: a block must not span two mappings.
  free_.emplace(data, size);
  by_size_.emplace(size, data);
  return true;
}

void PageHeap::Expect(int64_t nbytes) {
  if (!fixed_ && by_size_.lower_bound({nbytes, nullptr}) == by_size_.end())
    Grow(nbytes);
}

std::byte* PageHeap::Take(int64_t nbytes) {
  TERRACE_CHECK(nbytes > 0 && nbytes % PageNbytes() == 0,
                "[page_heap] a block must be whole pages, got ", nbytes);
  auto fit = by_size_.lower_bound({nbytes, nullptr});
  if (fit == by_size_.end()) {
    if (fixed_ || !Grow(nbytes)) return nullptr;
    fit = by_size_.lower_bound({nbytes, nullptr});
  }
  std::byte* const data = fit->second;
  return Cut(free_.find(data), data, nbytes);
}

std::byte* PageHeap::TakeAt(int64_t offset, int64_t nbytes) {
  if (mappings_.empty()) return nullptr;
  const Mapping& mapping = mappings_.front();
  if (offset + nbytes > mapping.nbytes) return nullptr;
  std::byte* const data = mapping.data + offset;
  auto range = free_.upper_bound(data);
  if (range == free_.begin()) return nullptr;
  --range;
  if (range->first + range->second < data + nbytes) return nullptr;
  return Cut(range, data, nbytes);
}

std::byte* PageHeap::Cut(Ranges::iterator range, std::byte* data,
                         int64_t nbytes) {
  const auto [begin, size] = *range;
  RemoveFree(range);
  const int64_t before = data - begin;
  const int64_t after = size - before - nbytes;
  if (before > 0) {
    free_.emplace(begin, before);
    by_size_.emplace(before, begin);
  }
  if (after > 0) {
    free_.emplace(data + nbytes, after);
    by_size_.emplace(after, data + nbytes);
  }
  taken_ += nbytes;
  kept_ -= RemoveKept(data, nbytes);
  return data;
}

void PageHeap::Give(std::byte* data, int64_t nbytes) {
  taken_ -= nbytes;
  AddFree(data, nbytes);
  kept_ranges_.emplace(data, nbytes);
  kept_ += nbytes;
}

void PageHeap::AddFree(std::byte* data, int64_t nbytes) {
  const auto begins_mapping = [&](const std::byte* at) {
    return std::any_of(mappings_.begin(), mappings_.end(),
                       [&](const Mapping& m) { return m.data == at; });
  };
  auto next = free_.lower_bound(data);
  if (next != free_.end() && data + nbytes == next->first &&
      !begins_mapping(next->first)) {
    nbytes += next->second;
    const auto joined = next++;
    RemoveFree(joined);
  }
  if (next != free_.begin() && !begins_mapping(data)) {
    const auto before = std::prev(next);
    if (before->first + before->second == data) {
      data = before->first;
      nbytes += before->second;
      RemoveFree(before);
    }
  }
  free_.emplace(data, nbytes);
  by_size_.emplace(nbytes, data);
}

void PageHeap::RemoveFree(Ranges::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

int64_t PageHeap::RemoveKept(std::byte* data, int64_t nbytes) {
  std::byte* const end = data + nbytes;
  int64_t removed = 0;
  auto at = kept_ranges_.upper_bound(data);
  if (at != kept_ranges_.begin()) --at;
  while (at != kept_ranges_.end() && at->first < end) {
    std::byte* const begin = at->first;
    std::byte* const stop = begin + at->second;
    if (stop <= data) {
      ++at;
      continue;
    }
    at = kept_ranges_.erase(at);
    if (begin < data) kept_ranges_.emplace(begin, data - begin);
    if (stop > end) kept_ranges_.emplace(end, stop - end);
    removed += std::min(stop, end) - std::max(begin, data);
  }
  return removed;
}

void PageHeap::Discard(std::byte* data, int64_t nbytes) {
  kept_ -= RemoveKept(data, nbytes);
  (void)::madvise(data, static_cast<size_t>(nbytes), MADV_DONTNEED);
}

void PageHeap::DiscardAll() {
  for (const auto& [data, nbytes] : kept_ranges_)
    (void)::madvise(data, static_cast<size_t>(nbytes), MADV_DONTNEED);
  kept_ranges_.clear();
  kept_ = 0;
}

int64_t PageHeap::DiscardAtLeast(int64_t nbytes) {
  int64_t discarded = 0;
  while (discarded < nbytes && !kept_ranges_.empty()) {
    const auto [data, size] = *kept_ranges_.begin();
    const int64_t part =
        std::min(size, RoundUp(nbytes - discarded, PageNbytes()));
    Discard(data, part);
    discarded += part;
  }
  return discarded;
}

bool PageHeap::Contains(const std::byte* data) const {
  return std::any_of(mappings_.begin(), mappings_.end(), [&](const Mapping& m) {
    return m.data <= data && data < m.data + m.nbytes;
  });
}

}  // namespace terrace
