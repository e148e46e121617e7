"""Operations on lists of tensors, and the fused update rules: torch's own, under names without an underscore.

torch keeps these functions private, so they are named here alone. `foreach.add_(a, b)` is a_i += b_i for every i, in one call.
"""

import torch

add = torch._foreach_add
add_ = torch._foreach_add_
addcdiv_ = torch._foreach_addcdiv_
addcmul_ = torch._foreach_addcmul_
clamp_max = torch._foreach_clamp_max
clamp_min = torch._foreach_clamp_min
clamp_min_ = torch._foreach_clamp_min_
copy_ = torch._foreach_copy_
div = torch._foreach_div
div_ = torch._foreach_div_
lerp_ = torch._foreach_lerp_
mul = torch._foreach_mul
mul_ = torch._foreach_mul_
neg = torch._foreach_neg
norm = torch._foreach_norm
sqrt = torch._foreach_sqrt
sqrt_ = torch._foreach_sqrt_
sub_ = torch._foreach_sub_
zero_ = torch._foreach_zero_

fused_adam_ = torch._fused_adam_
fused_sgd_ = torch._fused_sgd_
