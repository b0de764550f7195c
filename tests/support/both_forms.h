// Operations have two forms, a blocking and an asynchronous one. Tests of both run the same lines twice.
#pragma once

// Calls `op`, or its asynchronous form if `way.async`, and is done when the operation is.
#define RUN(way, op, ...)              \
  do {                                 \
    if ((way).async) {                 \
      op##_async(__VA_ARGS__)->wait(); \
    } else {                           \
      op(__VA_ARGS__);                 \
    }                                  \
  } while (false)
