// Blocks of whole pages from few large mappings, reused by best fit.
//
// A mapping starts on a huge page's boundary and asks for huge pages
// (madvise), since tensors are large and walked end to end: fewer faults and
// fewer entries of the translation buffer. Freed neighbours join. Freed pages
// stay with the process (`kept`) until they are used again or given back.
//
// Of an untouched heap nothing is meant to be read or written: its mappings are
// addresses alone, without huge pages and without a claim on memory.
//
// Not thread-safe: Arena locks. Not for AddressSanitizer, which must see each
// block apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace terrace {

// What a page of this machine takes, 4096 bytes at least.
int64_t PageNbytes();

class PageHeap {
 public:
  // May be asked for so many bytes more; empty: always.
  using Grant = std::function<bool(int64_t nbytes)>;
  explicit PageHeap(Grant grant = {}, bool untouched = false);
  // One mapping of that many bytes that never grows.
  explicit PageHeap(int64_t fixed_nbytes, bool untouched = false);
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  // What is taken next comes to `nbytes`, whole pages: one mapping for it all,
  // where more is granted and mapped.
  void Expect(int64_t nbytes);
  // `nbytes` > 0, a multiple of PageNbytes(). Null when there is no room and no
  // more is granted or mapped.
  std::byte* Take(int64_t nbytes);
  // The block at `offset` of a fixed heap; null when any of it is taken.
  std::byte* TakeAt(int64_t offset, int64_t nbytes);
  void Give(std::byte* data, int64_t nbytes);
  // Gives the pages of a free block, or all free ones, back to the system.
  void Discard(std::byte* data, int64_t nbytes);
  void DiscardAll();
  // At least `nbytes` of the kept ones, as far as there are so many: the number
  // of bytes.
  int64_t DiscardAtLeast(int64_t nbytes);

  bool Contains(const std::byte* data) const;
  int64_t mapped() const { return mapped_; }  // bytes of all mappings
  int64_t taken() const { return taken_; }    // bytes in use
  int64_t kept() const { return kept_; }      // freed bytes not given back

 private:
  using Ranges = std::map<std::byte*, int64_t>;  // begin, bytes; disjoint
  struct Mapping {
    std::byte* data;
    int64_t nbytes;
  };

  bool Grow(int64_t nbytes);
  void AddFree(std::byte* data, int64_t nbytes);
  void RemoveFree(Ranges::iterator range);
  // Cuts [data, data + nbytes) out of the free range that holds it.
  std::byte* Cut(Ranges::iterator range, std::byte* data, int64_t nbytes);
  int64_t RemoveKept(std::byte* data, int64_t nbytes);  // bytes removed

  const bool fixed_, untouched_;
  const Grant grant_;
  std::vector<Mapping> mappings_;
  Ranges free_;
  std::set<std::pair<int64_t, std::byte*>> by_size_;  // of free_
  Ranges kept_ranges_;  // parts of free_ that hold pages
  int64_t mapped_ = 0, taken_ = 0, kept_ = 0;
};

}  // namespace terrace
