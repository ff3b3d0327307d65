"""PTX text for tests of single instructions: a kernel `k` around a few statements."""

from __future__ import annotations

_REGISTERS = """
  .reg .pred %p<8>;
  .reg .b16 %h<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<8>;
  .reg .b64 %d<16>;
  .reg .b128 %q<4>;
  .shared .align 128 .b8 block[1024];
"""


def ptx(body: str, target: str = "sm_100a") -> str:
    """The kernel k(pointer): %d0 holds the argument, %r0 the thread, %r1 the address of `block`,
    which is 1024 bytes of shared memory."""
    return f""".version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 argument)
{{{_REGISTERS}
  ld.param.u64 %d0, [argument];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, block;
  {body}
  ret;
}}
"""
