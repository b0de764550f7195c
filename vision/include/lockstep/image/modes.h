// How pixels between pixels, and outside of the picture, get their values.
#pragma once

namespace lockstep::data {

// PIL's filters. Warps (rotations and affine transforms) take the first three.
enum class Interpolation { kNearest, kBilinear, kBicubic, kBox, kHamming, kLanczos };

// What is around a picture: one colour, the outermost pixels, or the picture mirrored, without (kReflect) or with
// (kSymmetric) its outermost pixels.
enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

}  // namespace lockstep::data
