// Writes text on pictures with the system's fonts: fontconfig finds the fonts, FreeType draws the letters.
//
// Letters are drawn one after another from left to right: no ligatures, and no right-to-left scripts.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

class Lettering {
 public:
  static constexpr int kLineHeight = 16;  // pixels, with the parts of letters below the baseline

  // kNotFound when the system has no font. The search takes some milliseconds.
  static Result<Lettering> find();
  ~Lettering();
  Lettering(Lettering&&) noexcept;
  Lettering& operator=(Lettering&&) noexcept;

  // Draws light letters of UTF-8 text in the box of `width` and kLineHeight at (left, top), which must be inside of the
  // picture. Text that is too long ends in an ellipsis. Characters that no font has are empty boxes, bytes that are not
  // UTF-8 are U+FFFD.
  void draw(Image& image, int left, int top, int width, std::string_view text);

 private:
  struct Fonts;
  explicit Lettering(std::unique_ptr<Fonts> fonts);

  std::unique_ptr<Fonts> fonts_;
};

}  // namespace lockstep::data
