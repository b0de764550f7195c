// A restricted reader of Python's pickles: what torch.save writes with protocols 2 to 5. It calls nothing: a "call" of
// a name of pickle_names.h is noted, and what any other name makes is a foreign value, of which only the name is kept.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file/file_bytes.h"
#include "lockstep/checkpoint/errors.h"
#include "pickle_graph.h"

namespace lockstep::checkpoint {

// The bytes of a pickle, one after another, from a part of a file.
class PickleInput {
 public:
  // Reads bytes [begin, end) of `file`, which must outlive this object.
  PickleInput(const FileBytes& file, std::uint64_t begin, std::uint64_t end) : file_(file), next_(begin), end_(end) {}

  // The offset in the file of the byte that is read next.
  std::uint64_t position() const { return next_ - (buffer_.size() - used_); }
  std::uint64_t left() const { return end_ - position(); }

  // Each throws CheckpointError (kCorrupt) when the bytes end.
  std::uint8_t byte() {
    if (used_ == buffer_.size()) fill();
    return static_cast<std::uint8_t>(buffer_[used_++]);
  }

  std::string bytes(std::uint64_t count) {
    if (count > left()) {
      throw CheckpointError(ErrorCode::kCorrupt,
                            fmt::format("damaged: its pickle has a text of {} bytes at byte {}, but "
                                        "only {} bytes are left",
                                        count, position(), left()));
    }
    std::string text;
    text.reserve(count);
    while (text.size() < count) {
      if (used_ == buffer_.size()) fill();
      const std::size_t piece = std::min<std::size_t>(buffer_.size() - used_, count - text.size());
      text.append(buffer_.data() + used_, piece);
      used_ += piece;
    }
    return text;
  }

  // Up to the end of the line, without it; at most `most` bytes.
  std::string line(std::size_t most) {
    const std::uint64_t begin = position();
    std::string text;
    for (std::uint8_t next = byte(); next != '\n'; next = byte()) {
      if (text.size() == most) {
        throw CheckpointError(ErrorCode::kCorrupt,
                              fmt::format("damaged: its pickle has a name of over {} bytes at byte {}", most, begin));
      }
      text += static_cast<char>(next);
    }
    return text;
  }

  // An unsigned little-endian number of `count` bytes, at most 8.
  std::uint64_t number(std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{byte()} << (8 * i);
    return value;
  }

 private:
  static constexpr std::size_t kBuffer = 1 << 16;

  void fill() {
    if (next_ >= end_) {
      throw CheckpointError(ErrorCode::kCorrupt, fmt::format("damaged: its pickle ends too early, at byte {}", end_));
    }
    buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBuffer, end_ - next_)));
    file_.read(next_, buffer_.data(), buffer_.size());
    next_ += buffer_.size();
    used_ = 0;
  }

  const FileBytes& file_;
  std::uint64_t next_;  // what fill() reads
  std::uint64_t end_;
  std::vector<char> buffer_;
  std::size_t used_ = 0;
};

namespace pickle_opcode {

// Those that are read, named as in Python's pickletools.
enum PickleOpcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

}  // namespace pickle_opcode

// Memory that the values may take for each byte of the pickle, beside the allowance.
inline constexpr std::uint64_t kPicklePerByte = 48;

// Reads one pickle, up to its end mark. Throws CheckpointError without the path, whose text names the byte: kCorrupt
// for broken bytes and values that take more memory than is allowed; kUnsupported for opcodes that are not known.
// Takes what the values need from `allowance`.
PickleGraph read_pickle(PickleInput& input, ReadAllowance& allowance);

}  // namespace lockstep::checkpoint
