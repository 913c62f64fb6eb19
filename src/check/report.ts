import type { CaseReport, CaseVerdict, CheckReport } from './types.ts'

const LINE_LENGTH = 100
const LABEL_LENGTH = 8

/** The report for people: a table, and then everything that is not as it should be, explained. */
export function toText(report: CheckReport, { isColored = false }: { isColored?: boolean } = {}): string {
  const { url, method, cases, totals, requests, durationMs } = report
  const paint = isColored ? painted : (text: string) => text
  const idLength = Math.max(...cases.map(({ id }) => id.length))
  const rows = cases.map(({ id, title, verdict }) => `  ${paint(verdict, verdict)}  ${id.padEnd(idLength)}  ${title}`)
  const parts = [
    `oncekey check: ${method} ${url}\n${JUDGED[report.probe.judgedBy]}\n${requests} requests in ${(durationMs / 1_000).toFixed(1)} s.`,
    rows.join('\n'),
    ...explained(cases, 'fail', paint),
    ...explained(cases, 'warn', paint),
    skipped(cases),
    `${totals.pass} passed, ${totals.fail} failed, ${totals.warn} with a warning, ${totals.skip} skipped.`,
  ]
  return `${parts.filter((part) => part !== '').join('\n\n')}\n`
}

const JUDGED: Readonly<Record<CheckReport['probe']['judgedBy'], string>> = {
  effects: 'Judged by the number of effects, and by the answers.',
  answers: 'Judged by the answers, which differ between operations; give --count-url to see the effects themselves.',
  nothing: 'All operations are answered the same: a second run cannot be told from a replay. Give --count-url.',
}

type Paint = (text: string, verdict: CaseVerdict) => string

function explained(cases: readonly CaseReport[], verdict: CaseVerdict, paint: Paint): string[] {
  return cases
    .filter((one) => one.verdict === verdict)
    .map((one) =>
      [
        `${paint(verdict.toUpperCase(), verdict)}  ${one.id}: ${one.title}`,
        line('sent', one.sent),
        line('came', one.came),
        line('means', one.meaning),
        line('next', one.next),
        line('basis', one.basis),
        line('keys', one.keys.join(', ')),
      ].join('\n'),
    )
}

function skipped(cases: readonly CaseReport[]): string {
  const lines = cases
    .filter(({ verdict }) => verdict === 'skip')
    .map((one) => line(one.id, `${one.meaning} ${one.next}`.trim()))
  return lines.length === 0 ? '' : `Skipped\n${lines.join('\n')}`
}

/** A label and its text, broken at spaces. A word that is too long stays whole. */
function line(label: string, text: string): string {
  const indent = ' '.repeat(LABEL_LENGTH + 2)
  const lines: string[] = []
  let current = ''
  for (const word of text.split(' ')) {
    if (current !== '' && current.length + 1 + word.length > LINE_LENGTH - indent.length) {
      lines.push(current)
      current = word
    } else {
      current = current === '' ? word : `${current} ${word}`
    }
  }
  lines.push(current)
  const head = label.length < LABEL_LENGTH ? `  ${label.padEnd(LABEL_LENGTH)}` : `  ${label}\n${indent}`
  return `${head}${lines.join(`\n${indent}`)}`
}

const COLORS: Readonly<Record<CaseVerdict, number>> = { pass: 32, fail: 31, warn: 33, skip: 90 }

function painted(text: string, verdict: CaseVerdict): string {
  return `\u001b[${COLORS[verdict]}m${text}\u001b[0m`
}
