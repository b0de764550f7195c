// Writes the event files that TensorBoard reads, with the names of torch.utils.tensorboard.SummaryWriter. Start
// `tensorboard --logdir runs` to look at them.
//
//   SummaryWriter writer;
//   if (rank == 0) writer = data::value_or_throw(SummaryWriter::open("runs/first"));
//   ...
//   writer.add_scalar("loss/train", loss, step);
//
// SummaryWriter() writes nothing, for the other ranks. Like RunLog, a SummaryWriter never ends a training: records
// that a full disk does not take are left out, with one warning. Each writer has a file of its own, also when a run
// resumes in its folder; TensorBoard joins the files. A file has whole records only, whatever happens to the process.
//
// Records are kept in memory until there are 64 KiB or 10 s have passed since the last write; then the call that adds
// a record writes all of them. So what a killed process has added in its last 10 s may be missing. All functions may be
// called from several threads. In a fork of its process a SummaryWriter writes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::report {

class SummaryWriter {
 public:
  SummaryWriter();  // writes nothing
  // Makes the folder if it is missing, and a new file in it. Errors: kPermission, kNotFound, kIo.
  static Result<SummaryWriter> open(const std::filesystem::path& folder);
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;
  ~SummaryWriter();  // flushes

  // PyTorch's purge_step, for a run that resumes: call it first, with the first step to come. TensorBoard then hides
  // all values that earlier files of the folder have for this step and for later steps, under all names. Values that
  // are counted by something other than steps, such as epochs, must have smaller numbers to stay visible.
  void purge(std::int64_t step);
  // TensorBoard keeps scalars as 32-bit numbers. Names with a slash are grouped by the part before the slash.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  void flush();
  // The first error of a write since open().
  Status status() const;
  // The file; empty when nothing is written.
  std::filesystem::path path() const;

 private:
  class Writer;
  explicit SummaryWriter(std::unique_ptr<Writer> writer);

  std::unique_ptr<Writer> writer_;
};

}  // namespace lockstep::report
