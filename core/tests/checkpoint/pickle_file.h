// Files of torch.save with pickles that are written by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/python/zip_file.h"

namespace lockstep::checkpoint {

using namespace std::string_literals;

// A file with this pickle, and a storage "0" of 16 bytes. Entries are in zip64 records from `zip64_from` on.
inline void write_pickle_file(const std::filesystem::path& path, const std::string& pickle,
                              std::uint64_t zip64_from = 0xFFFFFFFF) {
  AtomicFile out = AtomicFile::create(path).value();
  ZipWriter zip(out, zip64_from);
  ASSERT_TRUE(zip.add("a/data.pkl", pickle).ok());
  ASSERT_TRUE(zip.add("a/data/0", std::string(16, '\x01')).ok());
  ASSERT_TRUE(zip.finish().ok());
  ASSERT_TRUE(out.commit().ok());
}

// The opcodes of a text of less than 256 bytes.
inline std::string short_text(const std::string& utf8) {
  return "\x8c" + std::string(1, static_cast<char>(utf8.size())) + utf8;
}

// The opcodes of a tensor over storage "0" of `type`, which has 16 bytes; `rest` comes after the storage.
inline std::string tensor_pickle(const std::string& count, const std::string& rest,
                                 const std::string& type = "torch\nFloatStorage") {
  return "\x80\x02"
         "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagec"s +
         type +
         "\nX\x01\0\0\0"
         "0X\x03\0\0\0"
         "cpu"s +
         count + "tQ" + rest +
         "\x89"
         "ccollections\nOrderedDict\n)RtR."s;
}

}  // namespace lockstep::checkpoint
