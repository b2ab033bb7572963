//go:build linux && amd64 && !nohpu

#include "textflag.h"

// callByValue follows the C calling convention: it is called on the system stack, with
// DI pointing to an initRank {fn, comm, ranks, id, rank}. An argument of 1,032 bytes is of
// class MEMORY: its bytes lie on the stack where the callee's first stack argument
// is, at the stack pointer before the call, and the other arguments are in the registers
// as if it were not there.
TEXT callByValue<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP         // the stack pointer is a multiple of 16 now
	MOVQ  SP, BP
	SUBQ  $1040, SP  // 129 words and one that keeps it so
	MOVQ  DI, R11
	MOVQ  0(R11), R10
	MOVQ  24(R11), SI
	MOVQ  SP, DI
	MOVQ  $129, CX
	CLD
	REP; MOVSQ
	MOVQ  8(R11), DI
	MOVQ  16(R11), SI
	MOVQ  32(R11), DX
	XORL  AX, AX
	CALL  R10
	ADDQ  $1040, SP
	POPQ  BP
	RET

GLOBL ·byValue(SB), NOPTR|RODATA, $8
DATA ·byValue(SB)/8, $callByValue<>(SB)
