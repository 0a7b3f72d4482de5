// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
#include "event.h"
char LICENSE[] __attribute__((section("license"), used)) = "Dual BSD/GPL";
