// How your struct lists its members for all of Lockstep: by one function, fields(), in the namespace of the struct.
//
//   struct Batch {
//     torch::Tensor images, labels;
//   };
//   auto fields(Batch& batch) { return std::tie(batch.images, batch.labels); }
//
// The data loader makes batches of such samples and moves them to a device (collate.h), DataParallel splits and joins
// them (scatter.h), and the object collectives send them (object_codec.h). A field may have any type that these three
// take, and may be another struct with fields(). They do not see a member that is not listed. Write fields() before the
// struct is first used. A derived struct needs a fields() of its own.
#pragma once

namespace lockstep {

template <typename T>
concept HasFields = requires(T& value) {
  fields(value);
};

}  // namespace lockstep
