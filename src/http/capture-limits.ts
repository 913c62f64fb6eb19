/** What both captures need to know of the contract. */
export interface CaptureLimits {
  readonly contract: { readonly limits: { readonly answerBytesMax: number } }
  readonly keepsHeader: (name: string) => boolean
}
