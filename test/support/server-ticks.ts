/** For `storeSuite` on a real server: short, because its clock is waited for; longer when the machine is too busy for that. */
export const SERVER_TICKS: { readonly tickMs: number; readonly tickMsMax: number } = { tickMs: 60, tickMsMax: 1_920 }
