import type { Done, Run, Work } from '../../execution.ts'
import type { Answer } from '../../store.ts'
import type { Call, RunRecord } from './history.ts'
import type { SimProcess } from './process.ts'
import type { Random } from './random.ts'
import type { Stage } from './stage.ts'

/**
 * Handlers as they are in life: they take their time, do something outside at some moment of it, and end in every way
 * that a handler can end. They never lie: one that says that it did nothing has done nothing.
 */
export function makeWork(stage: Stage, call: Call, process: SimProcess): Work {
  return (given) => {
    const script = writeScript(stage.handlers, stage.plan.contract.lease.ms)
    const run = beginRun(stage, call, process, given, script)
    return new Promise<Done>((resolve, reject) => {
      let hasEnded = false
      const end = (done: Done | 'threw') => {
        if (hasEnded) return
        hasEnded = true
        run.done = done
        run.endedMs = stage.scheduler.nowMs
        stage.trace(() => `${process.name} run ${run.number}: ends, ${describeDone(done)}`)
        if (done === 'threw') reject(new Error(`run ${run.number} threw`))
        else resolve(done)
      }
      if (run.tookSignal) {
        given.signal.addEventListener('abort', () => {
          run.abortedMs = stage.scheduler.nowMs
          stage.see('signal-aborted')
          stage.trace(() => `${process.name} run ${run.number}: its signal aborts`)
          if (script.heedsSignal) end({ kind: 'broken' })
        })
      }
      const answer = answerOf(run, script)
      process.at(script.beforeMs, () => {
        if (hasEnded) return
        if (script.hasEffect) effect(stage, run, answer)
        process.at(script.afterMs, () => end(ending(stage, run, script, answer)))
      })
    })
  }
}

/** Asked on behalf of a run that took an operation over: has the effect taken place? It tells the truth, or that it cannot. */
export function lookUp(stage: Stage, process: SimProcess, given: Run): Promise<Answer | 'rerun' | 'unknown'> {
  return new Promise((resolve, reject) => {
    process.at(stage.handlers.between(0, 5), () => {
      stage.lookups.set(given, stage.scheduler.nowMs)
      const found = stage.history.effects.findLast(({ key, fingerprint }) => `${key}/${fingerprint}` === given.key)
      const cannotTell = stage.handlers.chance(15)
      const known = found && { ...found, answer: { ...found.answer, status: 200 } }
      const said = cannotTell ? 'unknown' : (known?.answer ?? 'rerun')
      stage.see(cannotTell ? 'reconcile-unknown' : 'reconciled')
      stage.trace(
        () =>
          `${process.name}: the hook is asked about ${given.key}: ${said === known?.answer ? 'it took place' : said}`,
      )
      if (known && !cannotTell) stage.history.answers.push(known)
      const isKnown = known !== undefined && !cannotTell
      stage.history.lookups.push({ key: given.id, atMs: stage.scheduler.nowMs, isKnown })
      if (cannotTell && stage.handlers.chance(30)) reject(new Error('the hook threw'))
      else process.at(stage.handlers.between(0, 5), () => resolve(said))
    })
  })
}

interface Script {
  readonly beforeMs: number
  readonly afterMs: number
  readonly hasEffect: boolean
  readonly ending: number | 'threw' | 'broken' | 'nothing-done'
  readonly body: 'text' | 'empty' | 'too-large'
  readonly takesSignal: boolean
  readonly heedsSignal: boolean
}

const HANDLER_STEP_MS_MAX = 750
/** Each step at most: a run never lasts longer, unless its process is paused. */
export const HANDLER_MS_MAX: number = 2 * HANDLER_STEP_MS_MAX

function writeScript(random: Random, leaseMs: number): Script {
  const stepMs = () =>
    Math.min(HANDLER_STEP_MS_MAX, random.between(0, random.pick([10, 10, 40, leaseMs, leaseMs * 2, leaseMs * 5])))
  const ending = random.pick(ENDINGS)
  return {
    beforeMs: stepMs(),
    afterMs: stepMs(),
    hasEffect: HAS_EFFECT_PERCENT.has(ending) && random.chance(HAS_EFFECT_PERCENT.get(ending) ?? 0),
    ending,
    body: random.pick(['text', 'text', 'text', 'text', 'text', 'text', 'text', 'empty', 'empty', 'too-large']),
    takesSignal: random.chance(60),
    heedsSignal: random.chance(40),
  }
}

const ENDINGS: readonly [Script['ending'], ...Script['ending'][]] = [
  200,
  200,
  200,
  200,
  201,
  303,
  400,
  404,
  500,
  429,
  503,
  502,
  'threw',
  'broken',
  'nothing-done',
]

const HAS_EFFECT_PERCENT: ReadonlyMap<Script['ending'], number> = new Map<Script['ending'], number>([
  [200, 100],
  [201, 100],
  [303, 100],
  [500, 50],
  [502, 60],
  ['threw', 60],
  ['broken', 60],
])

function beginRun(stage: Stage, call: Call, process: SimProcess, given: Run, script: Script): RunRecord {
  const { history } = stage
  const run: RunRecord = {
    number: history.runs.length + 1,
    call,
    attempt: given.attempt,
    derived: given.derive('charge'),
    startedMs: stage.scheduler.nowMs,
    process,
    tookSignal: script.takesSignal,
    lookedUpMs: stage.lookups.get(given),
    abortedMs: undefined,
    done: undefined,
    endedMs: undefined,
  }
  history.runs.push(run)
  call.run = run
  if (run.attempt > 1) stage.see('takeover')
  stage.trace(
    () =>
      `${process.name} run ${run.number}: starts for ${call.key}/${call.fingerprint}, attempt ${run.attempt}; will take ${script.beforeMs}+${script.afterMs} ms and end ${script.ending}`,
  )
  return run
}

function effect(stage: Stage, run: RunRecord, answer: Answer): void {
  const { key, fingerprint } = run.call
  stage.history.effects.push({ key, fingerprint, run, atMs: stage.scheduler.nowMs, answer })
  stage.trace(() => `${run.process.name} run ${run.number}: EFFECT for ${key}/${fingerprint}`)
}

/** No two runs give the same answer, so that an answer tells whose it is. */
function answerOf(run: RunRecord, script: Script): Answer {
  const { key, fingerprint } = run.call
  const text = script.body === 'text' ? `${key}/${fingerprint} run ${run.number}` : ''
  return {
    status: typeof script.ending === 'number' ? script.ending : 200,
    headers: [
      ['x-run', String(run.number)],
      ['x-run', key],
    ],
    body: script.body === 'too-large' ? null : encoder.encode(text),
  }
}

const encoder = new TextEncoder()

function ending(stage: Stage, run: RunRecord, script: Script, answer: Answer): Done | 'threw' {
  if (script.ending === 'threw') {
    stage.see('handler-threw')
    return 'threw'
  }
  if (typeof script.ending === 'string') return { kind: script.ending }
  const { key, fingerprint } = run.call
  stage.history.answers.push({ key, fingerprint, answer })
  return { kind: 'answered', answer }
}

function describeDone(done: Done | 'threw'): string {
  if (done === 'threw') return 'threw'
  return done.kind === 'answered' ? `answered ${done.answer.status}` : done.kind
}
