// Transforms from text, as a Python program would write them:
//
//   parse_transforms({"RandomResizedCrop(224, scale=(0.2, 1.0))", "RandomHorizontalFlip", "ToTensor",
//                     "Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])"});
//
// Names, parameters and the order of parameters are torchvision's. A parameter with a default may be left out. A value
// is one of these, in Python's notation:
//
//   - a number, or a quotient of two numbers: 224, -1e-3, 3/4
//   - None, True, False
//   - a word: bilinear, 'bilinear', InterpolationMode.BILINEAR, torch.float32
//   - a tuple or list of values: (0.2, 1.0), [224]; of numbers also 1, 2 or 3 times: [0.5] * 3
//
// Compose, RandomApply, RandomChoice and RandomOrder take a list of transforms. What Python prints of another transform
// is a text too; what Python prints of these four has no commas, so it is no text. A parameter that Python does not
// print has its default: in v1 pad_if_needed, fill and padding_mode of RandomCrop; in v2 the fill of RandAugment and
// TrivialAugmentWide, and value='random' of RandomErasing.
//
// v2's ToImage() is PILToTensor, ToDtype(torch.float32, scale=True) is ConvertImageDtype. `inplace` and `antialias`
// have no effect: pictures are always resized with antialiasing, as by PIL. Lambda has no text.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/transforms/transforms.h"

namespace lockstep::data {

// kInvalidArgument says which text is wrong, and why. For an unknown name it says the nearest known name. Compose, not
// this function, checks whether the values make sense.
Result<std::vector<Transform>> parse_transforms(const std::vector<std::string>& texts);

}  // namespace lockstep::data
