/* doorbell.pml with a single waiter, whose successor forgets its dead predecessor's sleep (doorbell_take_over). */
#define WAITERS 1
#include "doorbell.pml"
