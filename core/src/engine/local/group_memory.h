// GroupMemory: typed access to the control memory and to every rank's arena.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/call_place.h"
#include "control.h"
#include "shm/hand_over.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

class GroupMemory {
 public:
  GroupMemory(int rank, int size, std::string name, Roster roster, std::shared_ptr<SharedArena> arena, HandOver parts)
      : rank_(rank),
        size_(size),
        name_(std::move(name)),
        roster_(std::move(roster)),
        layout_(size),
        arena_(std::move(arena)),
        parts_(std::move(parts)) {
    for (int i = 0; i < size; ++i) {
      const ArenaView& view = *parts_.peers[i].arena;
      first_.push_back(
          {i == rank ? arena_->base() : view.base(), i == rank ? arena_->first_bytes() : view.first_bytes()});
    }
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  const Roster& roster() const { return roster_; }
  GroupNames names() const { return {name_, roster_}; }
  SharedArena& arena() const { return *arena_; }
  const std::shared_ptr<SharedArena>& shared_arena() const { return arena_; }
  const Peer& peer(int rank) const { return parts_.peers[rank]; }

  Header& header() const { return at<Header>(0); }
  RankState& state(int rank) const { return at<RankState>(layout_.state(rank)); }
  AbortReason& abort_reason(int rank) const { return at<AbortReason>(layout_.reason(rank)); }
  KnownCause& known_cause(int rank) const { return at<KnownCause>(layout_.known_cause(rank)); }
  WaitNote& wait_note(int rank) const { return at<WaitNote>(layout_.wait_note(rank)); }
  std::byte* stream(int rank) const { return &at<std::byte>(layout_.stream(rank)); }
  Post& post(int rank, std::uint64_t sequence) const { return at<Post>(layout_.post(rank, slot(sequence))); }
  Counter& claim(int rank, std::uint64_t sequence) const { return at<Counter>(layout_.claim(rank, slot(sequence))); }
  Counter& done(int rank, std::uint64_t sequence) const { return at<Counter>(layout_.done(rank, slot(sequence))); }
  // The place for inputs that have `bytes` together, at most kMostInlineBytes.
  std::byte* payload(int rank, std::uint64_t sequence, std::size_t bytes) const {
    if (bytes <= Communicator::kInlineBytes) return &at<std::byte>(layout_.payload(rank, slot(sequence)));
    return &at<std::byte>(layout_.large_payload(rank, slot(sequence)));
  }
  // The places of all ranks for large payloads.
  std::span<std::byte> large_payloads() const {
    return {&at<std::byte>(layout_.large_payload(0, 0)),
            static_cast<std::size_t>(size_) * ControlLayout::large_payload_bytes()};
  }
  PieceEntry* pieces(int rank, std::uint64_t sequence) const {
    return &at<PieceEntry>(layout_.pieces(rank, slot(sequence)));
  }
  MessageRing& messages(int from, int to) const { return at<MessageRing>(layout_.messages(from, to)); }
  Message& message(int from, int to, std::uint64_t position) const {
    return messages(from, to).entries[position % kChannelEntries];
  }

  // Says from where this rank calls a collective. Under the group's lock, before `current` and the post are stored.
  void set_call_place(std::uint64_t sequence, CallPlace place) const {
    if (std::max(place.site, place.label) > texts_shared_) share_texts();
    place_word(rank_, sequence).store(place.word(), std::memory_order_release);
  }
  // " at src/train.cpp:41": from where `rank` has called a collective that it has posted; empty: not known.
  std::string call_place(int rank, std::uint64_t sequence) const;

  // An address that `rank` published, as a pointer of this process. For another rank's address, call reach() before.
  std::byte* resolve(int rank, Address address) const {
    if ((address & kInControl) != 0) return parts_.control->base() + (address & ~kInControl);
    const std::size_t offset = address - 1;
    const First& first = first_[rank];
    if (offset < first.bytes) return first.base + offset;
    return rank == rank_ ? arena_->at(offset) : parts_.peers[rank].arena->at(offset);
  }
  // Needed before the first use of an address that another rank published in this group: it may lie in a segment of
  // that rank's arena that this process has not mapped yet. Mapping it may fail.
  Status reach(int rank, Address address) const {
    if (address == kNowhere || (address & kInControl) != 0 || address <= first_[rank].bytes || rank == rank_) return {};
    return parts_.peers[rank].arena->reach(address - 1);
  }
  Address address_in_arena(const void* pointer) const { return arena_->offset_of(pointer) + 1; }
  Address address_in_control(const std::byte* pointer) const {
    return kInControl | static_cast<Address>(pointer - parts_.control->base());
  }

 private:
  // Shows the other ranks all texts that this process has by now.
  void share_texts() const;
  CallWord& place_word(int rank, std::uint64_t sequence) const {
    return at<CallWord>(layout_.call_place(rank, slot(sequence)));
  }
  static int slot(std::uint64_t sequence) { return static_cast<int>(sequence % kRing); }
  template <typename T>
  T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(parts_.control->base() + offset);
  }

  int rank_;
  int size_;
  std::string name_;
  Roster roster_;
  ControlLayout layout_;
  std::shared_ptr<SharedArena> arena_;
  HandOver parts_;
  struct First {  // the first segment of a rank's arena, as this process maps it
    std::byte* base;
    std::size_t bytes;
  };
  std::vector<First> first_;
  mutable TextNumber texts_shared_ = 0;
};

}  // namespace lockstep::comm
