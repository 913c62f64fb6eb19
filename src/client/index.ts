/**
 * `oncekey/client`: for whoever sends. `idempotentFetch` needs nothing but the web's own APIs; `structuredKeys` also
 * needs a disk, and asks for it only when it is called, so a browser's bundle may hold both.
 */
export { type AnswerOf, isReplay, isWorthRetrying } from './answers.ts'
export {
  type Attempt,
  type FetchLike,
  type IdempotentFetchOptions,
  type IdempotentInit,
  idempotentFetch,
  keyOf,
  UnansweredError,
} from './fetch.ts'
export {
  formatStructuredKey,
  type ParsedStructuredKey,
  parseStructuredKey,
  type StructuredKey,
  type StructuredKeys,
  type StructuredKeysOptions,
  structuredKeys,
} from './structured-keys.ts'
