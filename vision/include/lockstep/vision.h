// All of the component vision that a training program uses: datasets of pictures, their transforms, and models. Not
// here: picture files by themselves (lockstep/image), transforms from text (lockstep/transforms/parse.h), packs and
// checks of folders (lockstep/picture_tools).
#pragma once

#include "lockstep/datasets/cifar.h"             // IWYU pragma: export
#include "lockstep/datasets/image_folder.h"      // IWYU pragma: export
#include "lockstep/datasets/mix.h"               // IWYU pragma: export
#include "lockstep/datasets/mnist.h"             // IWYU pragma: export
#include "lockstep/datasets/packed_images.h"     // IWYU pragma: export
#include "lockstep/models/mnist_net.h"           // IWYU pragma: export
#include "lockstep/models/mobilenet_v3.h"        // IWYU pragma: export
#include "lockstep/models/resnet.h"              // IWYU pragma: export
#include "lockstep/models/vision_transformer.h"  // IWYU pragma: export
