// Folders with picture files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "image/encoders.h"
#include "support/scratch_folder.h"

namespace lockstep::test {

// The bytes for ScratchFolder::write.
inline std::string text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// Two classes with four good pictures (one is tiny, one is a duplicate), two corrupt ones and a text file.
inline void write_good_and_faulty_pictures(const ScratchFolder& scratch) {
  const std::vector<std::uint8_t> good = encode_jpeg(make_picture(100, 80, 1));
  scratch.write("cat/1.jpg", text(good));
  scratch.write("cat/2.jpg", text(encode_jpeg(make_picture(100, 80, 2))));
  scratch.write("cat/empty.jpg", "");
  scratch.write("cat/cut.jpg", text({good.begin(), good.begin() + 900}));
  scratch.write("dog/icon.png", text(encode_png(make_picture(1, 1))));
  scratch.write("dog/same.jpg", text(good));
  scratch.write("dog/readme.txt", "no picture");
}

}  // namespace lockstep::test
