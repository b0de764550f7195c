// Collectives as data: what all ranks agree on (Spec), how one rank takes part (Style), and a Call that makes its
// buffers, runs it and compares the results with a plain local computation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/local/control.h"
#include "lockstep/engine/communicator.h"

namespace lockstep::test {

enum class Place { kArena, kPrivate };

// Bytes in the arena or on the heap, with canaries behind them.
class Buffer {
 public:
  Buffer(comm::SharedArena& arena, Place place, std::size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool intact() const;

 private:
  comm::SharedArena* arena_;
  std::vector<std::byte> heap_;
  std::byte* data_;
  std::size_t bytes_;
};

// The same on every rank.
struct Spec {
  comm::Kind kind = comm::Kind::kBarrier;
  comm::DataType type = comm::DataType::kFloat32;
  comm::ReduceOp op = comm::ReduceOp::kSum;
  int root = 0;
  std::size_t count = 0;  // elements; of lists, per piece
  bool even = true;       // lists: every piece has `count` elements, else 0 to 2 * count
  std::uint64_t seed = 0;
  // By rank, which machine it is on; empty: all on one. Sums are taken within machines first.
  std::vector<int> machine_of = {};
};

// Each rank's own.
struct Style {
  Place input = Place::kArena;
  Place output = Place::kArena;
  bool in_place = false;  // where the operation can be
  bool blocking = true;
};

Spec random_spec(std::mt19937_64& random, int world, std::size_t max_count);
Style random_style(std::mt19937_64& random);

// `count` elements that rank `from` contributes (to rank `to`); floats are between 1 and 2.
std::vector<std::byte> contribution(const Spec& spec, int from, int to, std::size_t count);

class Call {
 public:
  Call(comm::Communicator& group, const Spec& spec, const Style& style);

  Status run(Deadline deadline);
  Result<comm::Operation> start(comm::Communicator::KeepAlive keep_alive = nullptr);
  // Fails the current test where anything differs from the reference, inputs included.
  void check() const;
  const Style& style() const { return style_; }
  // The inputs and outputs, for tests that use them in other ways.
  std::vector<std::span<std::byte>> memory() const;

 private:
  struct Part {  // of a buffer
    std::size_t offset = 0;
    std::vector<std::byte> bytes;  // inputs: what is sent; outputs: what is expected
  };

  std::size_t count(int from, int to) const;
  std::vector<std::byte> sent(int from, int to) const;
  std::vector<std::byte> reduced(int to) const;
  void plan_inputs();
  void plan_outputs();
  void make_buffers();
  template <typename Use>
  auto with_args(Use use) const;
  std::vector<comm::ConstPiece> input_pieces() const;
  std::vector<comm::Piece> output_pieces() const;

  comm::Communicator& group_;
  Spec spec_;
  Style style_;
  std::vector<Part> inputs_;
  std::vector<Part> outputs_;
  std::unique_ptr<Buffer> input_;
  std::unique_ptr<Buffer> output_;  // null: in place
  bool output_used_ = true;
};

// Runs `steps` random operations on `group`; every rank must call it with the same seed.
void run_random_sequence(comm::Communicator& group, std::uint64_t seed, int steps, std::size_t max_count,
                         const std::vector<int>& machine_of = {});

}  // namespace lockstep::test
