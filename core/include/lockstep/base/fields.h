// How a struct of yours tells what is in it: one function in the namespace of the struct, for all of Lockstep.
//
//   struct Batch {
//     torch::Tensor images, labels;
//   };
//   auto fields(Batch& batch) { return std::tie(batch.images, batch.labels); }
//
// The data loader makes batches of such samples and moves them to a device (collate.h), DataParallel splits and joins
// them (scatter.h), and the object collectives send them (object_codec.h). A field is a value of any type that the user
// of fields() takes, another struct with fields() too. What is not listed is not seen. Write fields() before the struct
// is first used; a struct that is derived from another needs its own.
#pragma once

namespace lockstep {

template <typename T>
concept HasFields = requires(T& value) {
  fields(value);
};

}  // namespace lockstep
