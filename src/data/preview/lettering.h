// Words on pictures, in the scripts that the system's fonts have: fontconfig finds the fonts, FreeType draws their
// letters.
//
// Letters stand one after another from left to right: no ligatures, and no scripts that run from right to left.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/data/image/image.h"

namespace lockstep::data {

class Lettering {
 public:
  static constexpr int kLineHeight = 16;  // pixels, with what hangs below the line

  // kNotFound when the system has no font. Looking for them takes some milliseconds.
  static Result<Lettering> find();
  ~Lettering();
  Lettering(Lettering&&) noexcept;
  Lettering& operator=(Lettering&&) noexcept;

  // Light letters of UTF-8 in the box of `width` and kLineHeight at (left, top), which has to lie inside of the
  // picture. What is too long ends in an ellipsis; what no font has is shown as an empty box, and what is not UTF-8 as
  // U+FFFD.
  void draw(Image& image, int left, int top, int width, std::string_view text);

 private:
  struct Fonts;
  explicit Lettering(std::unique_ptr<Fonts> fonts);

  std::unique_ptr<Fonts> fonts_;
};

}  // namespace lockstep::data
