// Whether all ranks have the same bits in their tensors, and which ranks differ.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep::nn_detail {

// A number for the bits of each tensor: whole, at least 1 and below 2^53, so a double holds it. Reads each tensor once.
// Tensors that are not strided, such as sparse ones, and undefined ones get 1. On a device it waits for the numbers.
std::vector<double> hashes_of(const std::vector<NamedParameter>& tensors);
// One number, of the same kind, for all of them.
double hash_of(const std::vector<double>& hashes);

// `by_rank`: a number of each rank. Returns an empty text if all numbers are equal. Otherwise the end of a sentence.
// With a majority it names the ranks outside: "of rank(s) 2 is not that of the other 4 ranks". Without a majority it
// groups ranks of equal numbers: "is not the same on all ranks: 0, 3 | 1, 2".
std::string who_differs(const std::vector<double>& by_rank);

}  // namespace lockstep::nn_detail
