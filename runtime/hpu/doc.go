// Package hpu replays plans on Gaudi 2 cards, one process a rank.
//
//	group   in the process that serves: starts the ranks, and gives them one message
//	        a step. It holds no card, so a card that hangs cannot hang it.
//	rank    a process that holds one card: it opens bundle and checkpoint itself,
//	        allocates everything, fills launch tables once, and then executes what
//	        it is told.
//
//	session ──Run──→ group ──plan 17──→ rank 0 ──→ copy, launch, all_reduce, … ──→ card
//	                   │   ──plan 17──→ rank 1 ──→                            ──→ card
//	                   └─ memory that all share: inputs, logits, what each rank is at
//
// Inputs are copied to the cards from shared memory and logits back to it, without a
// copy on the way. Every wait has an end: a step that takes longer than its deadline,
// or a rank that ends, fails the step with the state of all ranks, and the group has
// to be started again.
package hpu
