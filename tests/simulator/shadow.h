// SPDX-License-Identifier: Apache-2.0
// What the checker remembers of memory: for each word of four bytes, or each cell of tensor memory,
// the last writes and the reads since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <vector>

namespace dsv4::simulator {

// One access to a word, by an agent at a tick of its clock.
struct Access {
  static constexpr uint32_t kNoInstruction = 0xFFFFFF;

  uint32_t component = 0;
  uint32_t clock = 0;
  uint32_t instruction : 24;  // index in the program
  uint32_t bytes : 4;         // of the word, one bit each
  uint32_t write : 1;
  uint32_t strong : 1;   // may meet other strong accesses without a race
  uint32_t generic : 1;  // through the generic proxy
  uint32_t : 1;
};

// The accesses to a word that a later one may have to be ordered after: first in, first listed. All
// zero when nothing has been accessed.
struct Word {
  static constexpr uint32_t kInline = 4;
  uint32_t count = 0;
  uint32_t more = 0;  // 1 + place in Spill, when there are more than kInline
  Access first[kInline];
};

// Lists of words with more accesses than fit.
class Spill {
 public:
  std::vector<Access>& operator[](uint32_t place) { return lists_[place]; }
  uint32_t add() {
    if (!free_.empty()) {
      const uint32_t place = free_.back();
      free_.pop_back();
      return place;
    }
    lists_.emplace_back();
    return uint32_t(lists_.size() - 1);
  }
  void remove(uint32_t place) {
    lists_[place].clear();
    free_.push_back(place);
  }

 private:
  std::vector<std::vector<Access>> lists_;
  std::vector<uint32_t> free_;
};

inline Access& access_of(Word& word, Spill& spill, uint32_t i) {
  return i < Word::kInline ? word.first[i] : spill[word.more - 1][i - Word::kInline];
}

inline void append(Word& word, Spill& spill, const Access& access) {
  if (word.count < Word::kInline) {
    word.first[word.count] = access;
  } else {
    if (word.more == 0) word.more = 1 + spill.add();
    spill[word.more - 1].push_back(access);
  }
  ++word.count;
}

// Keeps the accesses for which keep(access) is true, in their order.
template <class Keep>
void filter(Word& word, Spill& spill, Keep&& keep) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < word.count; ++i) {
    Access& access = access_of(word, spill, i);
    if (!keep(access)) continue;
    if (kept != i) access_of(word, spill, kept) = access;
    ++kept;
  }
  word.count = kept;
  if (word.more == 0) return;
  if (kept > Word::kInline) {
    spill[word.more - 1].resize(kept - Word::kInline);
  } else {
    spill.remove(word.more - 1);
    word.more = 0;
  }
}

// A zeroed array whose pages cost nothing until they are touched.
class Words {
 public:
  explicit Words(size_t count)
      : words_(static_cast<Word*>(std::calloc(count, sizeof(Word)))), size_(count) {}
  Word& operator[](size_t i) { return words_.get()[i]; }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(Word* p) const { std::free(p); }
  };
  std::unique_ptr<Word, Free> words_;
  size_t size_;
};

// Words of global memory, by pages that some instruction of the launch has written to. Pages that
// have only been read are not kept.
class GlobalShadow {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t kPageWords = kPageBytes / 4;

  // The page's words, or null if it has none and `create` is false.
  Word* page(uint64_t number, bool create) {
    if (number == last_number_) return last_;
    auto found = pages_.find(number);
    if (found == pages_.end()) {
      if (!create) return nullptr;
      found = pages_.emplace(number, Words(kPageWords)).first;
    }
    last_number_ = number;
    last_ = &found->second[0];
    return last_;
  }
  std::unordered_map<uint64_t, Words>& pages() { return pages_; }
  Spill& spill() { return spill_; }

 private:
  std::unordered_map<uint64_t, Words> pages_;
  Spill spill_;
  uint64_t last_number_ = ~0ull;
  Word* last_ = nullptr;
};

}  // namespace dsv4::simulator
