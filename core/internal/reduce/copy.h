// Copying between buffers of ranks, and reduction past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/reduce/reduce.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep::comm {

// memcpy of what is left. Where the compiler knows that few bytes are left, it copies them with `rep movs` instead of a
// call, which waits for the memory of each piece: copies of 512 bytes took four times as long.
inline void copy_rest(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__GNUC__)
  asm("" : "+r"(bytes));  // it knows no more
#endif
  std::memcpy(to, from, bytes);
}

// memcpy for blocks that are to stay in the cache. The C library copies more than 2 KiB with `rep movsb`. On Zen 3 and
// 4 that is some 50 times slower than vector moves when source and destination lie at nearly the same offset in their
// pages, as ours often do. Above some MiB it also bypasses the cache, from which the next rank is about to read.
inline void copy_cached(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
#if defined(__SSE2__)
  for (; bytes >= 64; bytes -= 64, in += 64, out += 64) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + 1);
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + 2);
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + 3);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), a);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 1, b);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 2, c);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 3, d);
  }
#endif
  if (bytes > 0) copy_rest(out, in, bytes);
}

// memcpy past the cache, for memory that this rank writes and others read, again and again. A plain store to a line
// that another core has read must wait until that core gives the line up: some 27 ns a line on Zen 4, one after the
// other. Streaming stores do not wait, and the readers get the line just as quickly.
inline void copy_to_readers(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
#if defined(__SSE2__)
  if (bytes >= 256) {
    // Whole lines only: a part of a line costs a write to memory of its own.
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % 64;
    if (head > 0) copy_rest(out, in, head);
    bytes -= head, in += head, out += head;
    for (; bytes >= 64; bytes -= 64, in += 64, out += 64) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + 1);
      const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + 2);
      const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + 3);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out), a);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out) + 1, b);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out) + 2, c);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out) + 3, d);
    }
    _mm_sfence();  // before the caller sets the flag for the readers
  }
#endif
  if (bytes > 0) copy_rest(out, in, bytes);
}

// From this size on, of all ranks' results together, results do not fit into a third-level cache. Smaller ones are
// copied into the cache: that takes half the time, and the next reader finds them there.
inline constexpr std::size_t kLargeResults = std::size_t{32} << 20;
// memcpy for large results. A plain store would read each line from memory before it overwrites it.
inline void copy_past_caches(void* to, const void* from, std::size_t bytes) {
  copy_to_readers(to, from, bytes);
}

// Like reduce() into one output, which is not read again soon (see copy_past_caches). With `cached`, which needs an
// output that is not an input, the result goes there too, in the ordinary way. May advance `inputs`.
void reduce_past_caches(const Reduction& reduction, std::vector<const std::byte*>& inputs, std::byte* output,
                        std::size_t count, std::byte* cached = nullptr);

}  // namespace lockstep::comm
