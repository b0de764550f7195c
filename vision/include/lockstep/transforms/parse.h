// Transforms from text, as a Python program would write them:
//
//   parse_transforms({"RandomResizedCrop(224, scale=(0.2, 1.0))", "RandomHorizontalFlip", "ToTensor",
//                     "Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])"});
//
// Names, parameters and their order are torchvision's; those that have a default may be left out. Numbers, also
// products and quotients (3/4), None, True, False, tuples and lists of these, words (bilinear, 'bilinear',
// InterpolationMode.BILINEAR, torch.float32), and for Compose, RandomApply, RandomChoice and RandomOrder lists of
// transforms. v2's ToImage() and ToDtype(torch.float32, scale=True) are PILToTensor and ConvertImageDtype. `inplace`
// and `antialias` have no effect: pictures are always resized with antialiasing, as by PIL. Lambda has no text.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/transforms/transforms.h"

namespace lockstep::data {

// kInvalidArgument says which text is wrong, and why; an unknown name comes with the nearest known one. Whether the
// values make sense is for Compose to say.
Result<std::vector<Transform>> parse_transforms(const std::vector<std::string>& texts);

}  // namespace lockstep::data
