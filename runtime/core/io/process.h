/* process.h - what was opened in one process and is used in a child that it forked.
 *
 * fork() copies memory, not threads: an engine's pool, a driver's context and their locks are no longer
 * served in the child. So the opener's number is kept, calls in a child are refused, and a free there gives
 * back our own memory and leaves the engine's alone. */
#ifndef SPECC_PROCESS_H
#define SPECC_PROCESS_H
#include <unistd.h>
#ifdef __cplusplus
  #define SPECC_IS_OPENER(opener) (static_cast<pid_t>(opener) == getpid())
#else
  #define SPECC_IS_OPENER(opener) ((pid_t)(opener) == getpid())
#endif

/* printf format of the refusal; %d: the opener, %d: this process. */
#define SPECC_FORKED                                                                                         \
  "the model was opened by process %d, and in its forked child %d the engine has no threads; open it again " \
  "in the child, or fork before opening"
#endif
