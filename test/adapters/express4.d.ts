/** Express 4 under its alias; the tests use only what both have. */
declare module 'express4' {
  export { default } from 'express'
}
