/* judge_rows.cu - the kernel of judge_rows.h: a block of threads takes a row. Compile with --fmad=false:
 * fused operations would give other bits than the C core. cmake -DSPECC_NVCC=PATH makes specc_judge.fatbin of
 * it; without it rows are judged on the CPU. */
#include "core/numbers/judge_rows.h"

extern "C" __global__ void __launch_bounds__(JUDGE_THREADS)
    specc_judge_rows_kernel(const judge_options *options, judge_buffers buffers) {
  __shared__ judge_shared shared;
  judge_one(&shared, options, &buffers, (int32_t)blockIdx.x);
}
