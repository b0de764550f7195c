// What the C library does with memory that a program frees.
#pragma once

namespace lockstep::nn_detail {

// Freed memory stays with the process from now on, as `lockstep run` does it for its workers: up to 512 MiB in large
// pieces, and the heaps of all threads. glibc would give a heap of 64 MiB of another thread than the main one back to
// the system whenever it is empty, and a replica's gradients and activations would be new pages in every step.
// Variables of the environment that say otherwise (MALLOC_TOP_PAD_ ...) are respected. Does nothing with other C
// libraries.
void keep_freed_memory();

}  // namespace lockstep::nn_detail
