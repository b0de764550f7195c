#include "preview/lettering.h"

#include <fontconfig/fontconfig.h>
#include <ft2build.h>

#include <algorithm>
#include <vector>
#include FT_FREETYPE_H

namespace lockstep::data {

// Not in an unnamed namespace: Lettering::Fonts has members of these types, and files are compiled in units.
namespace font_types {

template <auto function>
struct Call {
  template <typename T>
  void operator()(T* object) const {
    function(object);
  }
};

using Config = std::unique_ptr<FcConfig, Call<FcConfigDestroy>>;
using Pattern = std::unique_ptr<FcPattern, Call<FcPatternDestroy>>;
using FontSet = std::unique_ptr<FcFontSet, Call<FcFontSetDestroy>>;
using Library = std::unique_ptr<FT_LibraryRec_, Call<FT_Done_FreeType>>;
using Face = std::unique_ptr<FT_FaceRec_, Call<FT_Done_Face>>;

}  // namespace font_types

namespace {

using namespace font_types;  // NOLINT(google-build-using-namespace)

constexpr std::uint8_t kInk = 235;
constexpr int kPixels = 12;    // size of the letters, pixels
constexpr int kBaseline = 12;  // pixels below the top of the line
constexpr char32_t kEllipsis = U'\u2026';
constexpr char32_t kNotUtf8 = U'\ufffd';

// Fonts for text without serifs, the best first; fonts that add no new characters are left out.
FontSet sorted_fonts(FcConfig* config) {
  const Pattern wanted(FcNameParse(reinterpret_cast<const FcChar8*>("sans-serif:scalable=true")));
  FcConfigSubstitute(config, wanted.get(), FcMatchPattern);
  FcDefaultSubstitute(wanted.get());
  FcResult result = FcResultMatch;
  return FontSet(FcFontSort(config, wanted.get(), FcTrue, nullptr, &result));
}

std::vector<char32_t> characters_of(std::string_view text) {
  std::vector<char32_t> characters;
  while (!text.empty()) {
    FcChar32 character = 0;
    const int bytes =
        FcUtf8ToUcs4(reinterpret_cast<const FcChar8*>(text.data()), &character, static_cast<int>(text.size()));
    characters.push_back(bytes > 0 ? static_cast<char32_t>(character) : kNotUtf8);
    text.remove_prefix(bytes > 0 ? static_cast<std::size_t>(bytes) : 1);
  }
  return characters;
}

struct TextBox {
  int left, top, right, bottom;
};

void blend(Image& image, const TextBox& room, const FT_GlyphSlotRec_& glyph, int left) {
  const FT_Bitmap& bitmap = glyph.bitmap;
  if (bitmap.pixel_mode != FT_PIXEL_MODE_GRAY) return;
  left += glyph.bitmap_left;
  const int top = room.top + kBaseline - glyph.bitmap_top;
  for (int y = std::max(0, room.top - top); y < std::min(static_cast<int>(bitmap.rows), room.bottom - top); ++y) {
    const std::uint8_t* ink = bitmap.buffer + std::ptrdiff_t{y} * bitmap.pitch;
    for (int x = std::max(0, room.left - left); x < std::min(static_cast<int>(bitmap.width), room.right - left); ++x) {
      std::uint8_t* pixel = image.row(top + y) + std::ptrdiff_t{Image::kBytesPerPixel} * (left + x);
      for (int c = 0; c < 3; ++c) pixel[c] = static_cast<std::uint8_t>(pixel[c] + (kInk - pixel[c]) * ink[x] / 255);
    }
  }
}

}  // namespace

struct Lettering::Fonts {
  struct Font {
    const FcPattern* pattern;         // belongs to the set, like `characters`
    const FcCharSet* characters;      // that the font has
    font_types::Face face = nullptr;  // opened when it is needed
    bool tried = false;
  };

  font_types::Library library;
  font_types::Config config;
  font_types::FontSet set;
  std::vector<Font> fonts;

  FT_Face face_of(Font& font) {
    if (font.tried) return font.face.get();
    font.tried = true;
    FcChar8* file = nullptr;
    int index = 0;
    FT_Face face = nullptr;
    if (FcPatternGetString(font.pattern, FC_FILE, 0, &file) != FcResultMatch) return nullptr;
    FcPatternGetInteger(font.pattern, FC_INDEX, 0, &index);
    if (FT_New_Face(library.get(), reinterpret_cast<const char*>(file), index, &face) != 0) return nullptr;
    font.face.reset(face);
    if (FT_Set_Pixel_Sizes(face, 0, kPixels) != 0) font.face.reset();
    return font.face.get();
  }

  // The rendered glyph, in the memory of its face; null when no font can be used.
  FT_GlyphSlot glyph(char32_t character) {
    const auto has = [&](const Font& font) { return FcCharSetHasChar(font.characters, character) != FcFalse; };
    for (const bool any : {false, true}) {  // the second time any font: it shows a box for a missing character
      for (Font& font : fonts) {
        FT_Face face = any || has(font) ? face_of(font) : nullptr;
        if (face != nullptr && FT_Load_Char(face, character, FT_LOAD_RENDER) == 0) return face->glyph;
      }
    }
    return nullptr;
  }

  int advance(char32_t character) {
    const FT_GlyphSlot found = glyph(character);
    return found == nullptr ? 0 : static_cast<int>(found->advance.x >> 6);
  }

  // Keeps the characters that fit; if not all do, the last is an ellipsis.
  void shorten(std::vector<char32_t>& characters, int width) {
    const int ellipsis = advance(kEllipsis);
    int used = 0;
    std::size_t with_ellipsis = 0;
    for (std::size_t i = 0; i < characters.size(); ++i) {
      if (used + ellipsis <= width) with_ellipsis = i;
      used += advance(characters[i]);
      if (used <= width) continue;
      characters.resize(with_ellipsis);
      characters.push_back(kEllipsis);
      return;
    }
  }
};

Lettering::Lettering(std::unique_ptr<Fonts> fonts) : fonts_(std::move(fonts)) {}
Lettering::~Lettering() = default;
Lettering::Lettering(Lettering&&) noexcept = default;
Lettering& Lettering::operator=(Lettering&&) noexcept = default;

Result<Lettering> Lettering::find() {
  auto fonts = std::make_unique<Fonts>();
  FT_Library library = nullptr;
  if (FT_Init_FreeType(&library) != 0) return Status(ErrorCode::kIo, "FreeType cannot start: out of memory");
  fonts->library.reset(library);
  fonts->config.reset(FcInitLoadConfigAndFonts());
  if (fonts->config) fonts->set = sorted_fonts(fonts->config.get());
  for (int i = 0; fonts->set && i < fonts->set->nfont; ++i) {
    const FcPattern* pattern = fonts->set->fonts[i];
    FcCharSet* characters = nullptr;
    if (FcPatternGetCharSet(pattern, FC_CHARSET, 0, &characters) != FcResultMatch) continue;
    fonts->fonts.push_back({.pattern = pattern, .characters = characters});
  }
  if (fonts->fonts.empty()) {
    return Status(ErrorCode::kNotFound, "fontconfig finds no font. On Debian: apt-get install fonts-dejavu-core");
  }
  return Lettering(std::move(fonts));
}

void Lettering::draw(Image& image, int left, int top, int width, std::string_view text) {
  std::vector<char32_t> characters = characters_of(text);
  fonts_->shorten(characters, width);
  const TextBox room{left, top, left + width, top + kLineHeight};
  for (const char32_t character : characters) {
    const FT_GlyphSlot glyph = fonts_->glyph(character);
    if (glyph == nullptr) return;
    blend(image, room, *glyph, left);
    left += static_cast<int>(glyph->advance.x >> 6);
  }
}

}  // namespace lockstep::data
